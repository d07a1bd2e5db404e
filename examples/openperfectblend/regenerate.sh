#!/bin/bash
# Let the target answer OpenPerfectBlend's prompts, as the paper does: bash regenerate.sh URL
source "$(dirname "$0")/settings.sh"

mkdir -p "$(dirname "$ANSWERS")"
# The paper: effort medium, temperature 0.7. Chosen: 4,096 tokens an answer.
specforge-dstill regenerate --backend openai --base-url "$1/v1" --model "$TARGET" \
    --prompts mlabonne/open-perfectblend --output "$ANSWERS" --concurrency "${CONCURRENCY:-512}" \
    --temperature 0.7 --max-new-tokens 4096 --extra-body "$EFFORT"
