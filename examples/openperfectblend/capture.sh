#!/bin/bash
# The target's hidden states for its answers, through SGLang on every GPU of every node:
#   bash capture.sh [option …]
source "$(dirname "$0")/settings.sh"

ranks -m specforge_dstill capture --backend sglang --tp-size "$TP" --config "$CONFIG" \
    --conversations "$ANSWERS" --dtype "${DTYPE:-bfloat16}" --template-kwargs "$TEMPLATE" \
    "model.target_model_path=$TARGET" "$@"
