#!/bin/bash
# The paper's six benchmarks on one node, first without a drafter, then with it:
#   bash evaluate.sh plain; bash evaluate.sh dflash; bash evaluate.sh dstill_student
source "$(dirname "$0")/settings.sh"

drafter=$1 folder=served/$NAME/$1
shift
serve=(vllm serve "$TARGET" --port 30000 --tensor-parallel-size "$GPUS" --gpu-memory-utilization 0.8)
if [ "$drafter" = plain ]; then
    measured=(--plain-server http://127.0.0.1:30000)
else
    [ -e "$folder" ] || specforge-dstill export --config "$CONFIG" \
        --checkpoint "output/$NAME/$drafter-latest" --output-dir "$folder"
    # Sliding and full layers in one drafter need vLLM's second runner.
    if [ "$NAME" = gemma-4-31b ]; then export VLLM_USE_V2_MODEL_RUNNER=1; fi
    # 15 tokens: the block without its anchor.
    serve+=(--speculative-config "{\"method\": \"dflash\", \"model\": \"$folder\", \"num_speculative_tokens\": 15}")
    measured=(--server http://127.0.0.1:30000 --drafter "$drafter")
fi
"${serve[@]}" &
server=$!
trap 'kill $server 2> /dev/null || true' EXIT
until curl --silent --fail http://127.0.0.1:30000/health > /dev/null; do
    kill -0 $server || exit 1  # it ended before it could answer
    sleep 5
done
# GPT-OSS's own effort is medium; others: bash evaluate.sh plain --template-kwargs '{…}'.
specforge-dstill evaluate "${measured[@]}" --temperature 0,1 --concurrency 1,8,16,32 \
    --prompts gsm8k --prompts math500 --prompts humaneval --prompts mbpp --prompts mt-bench \
    --prompts swe-bench --max-new-tokens 4096 --output "results/$NAME" "$@"
