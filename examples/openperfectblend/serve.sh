#!/bin/bash
# Answer requests on this node; on the first of several also share them out: bash serve.sh [URL …]
source "$(dirname "$0")/settings.sh"

python -m sglang.launch_server --model-path "$TARGET" --host 0.0.0.0 --port 30000 \
    --tp-size "$TP" --dp-size $((GPUS / TP)) --reasoning-parser "$PARSER" &
if [ $# -gt 0 ]; then
    python -m sglang_router.launch_router --host 0.0.0.0 --port 30001 --worker-urls "$@" &
fi
wait
