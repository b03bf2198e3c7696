# Sourced by benchmarks with peers: one core with one thread, and make_peer.
python="${PYTHON:-.venv/bin/python}"
core="${CORE:-0}"
export JAX_PLATFORMS=cpu OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# make_peer FOLDER NAME PACKAGE...: an environment of its own, once.
make_peer() {
  local environment="$1/$2"
  shift 2
  if [ ! -e "$environment/ready" ]; then
    "$python" -m venv "$environment"
    "$environment/bin/pip" install --quiet "$@"
    touch "$environment/ready"
  fi
}

measure() { taskset --cpu-list "$core" "$python" "$@"; }
