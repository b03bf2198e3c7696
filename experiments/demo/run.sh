#!/bin/sh
set -eu
cd "$(dirname "$0")/../.."
make demo
cp runs/tiny_world/table.md runs/tiny_world/curves.png runs/tiny_world/summary.json experiments/demo/
