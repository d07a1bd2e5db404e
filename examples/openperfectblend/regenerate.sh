#!/bin/bash
# Let the target answer OpenPerfectBlend's prompts, as the paper does: bash regenerate.sh URL [option …]
source "$(dirname "$0")/settings.sh"

url=$1
shift
mkdir -p "$(dirname "$ANSWERS")"
# The paper, for GPT-OSS-120B: effort medium, temperature 0.7. Chosen: 4,096 tokens an answer.
specforge-dstill regenerate --backend openai --base-url "$url/v1" --model "$TARGET" \
    --prompts mlabonne/open-perfectblend --output "$ANSWERS" --concurrency "${CONCURRENCY:-512}" \
    --temperature 0.7 --max-new-tokens 4096 --template-kwargs "$TEMPLATE" "$@"
