#!/usr/bin/env bash
# The tiny policy behind `transformers serve`, in an environment of its own, and on this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=runs/served_policy
mkdir -p "$work"
if [ ! -x "$work/venv/bin/transformers" ]; then
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet "transformers[serving]==5.24.*" torch torchvision accelerate
fi
# transformers serve wants the chat template in a file of its own and a video processor's settings.
rm -rf "$work/policy"
cp -r experiments/tiny_world/policy "$work/policy"
python3 - "$work/policy" <<'PY'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
(folder / "chat_template.jinja").write_text(template)
images = json.loads((folder / "preprocessor_config.json").read_text())
del images["image_processor_type"], images["processor_class"]
images["video_processor_type"] = "Qwen3VLVideoProcessor"
(folder / "video_preprocessor_config.json").write_text(json.dumps(images))
PY
HF_HUB_OFFLINE=1 "$work/venv/bin/transformers" serve "$work/policy" --device cpu --port 8765 &
server=$!
trap 'kill "$server"' EXIT
until curl --silent --fail http://localhost:8765/health > /dev/null; do sleep 1; done
python -m experiments.served_policy.compare http://localhost:8765/v1 \
  --server "transformers serve $("$work/venv/bin/pip" show transformers | sed -n 's/^Version: //p')"
