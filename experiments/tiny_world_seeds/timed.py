"""Runs a Python program and writes its output and, when it ends well, its times.

python timed.py PATH PROGRAM...     # PATH.log, PATH.time
"""

import json
import pathlib
import resource
import subprocess
import sys
import time


def main():
    path, program = pathlib.Path(sys.argv[1]), sys.argv[2:]
    began = time.monotonic()
    with path.with_suffix(".log").open("w") as log:
        subprocess.run([sys.executable, *program], stdout=log, stderr=log, check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    times = {"wall_s": time.monotonic() - began, "cpu_s": used.ru_utime + used.ru_stime}
    path.with_suffix(".time").write_text(json.dumps(times) + "\n")


if __name__ == "__main__":
    main()
