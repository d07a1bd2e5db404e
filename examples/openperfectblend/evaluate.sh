#!/bin/bash
# The paper's six benchmarks on one node, first without a drafter, then with it:
#   bash evaluate.sh plain; bash evaluate.sh dflash; bash evaluate.sh dstill_student
# Options follow, such as another --output for another TEMPLATE.
source "$(dirname "$0")/settings.sh"

: "${SERVED:=served/$NAME}"              # where exported drafters are
drafter=$1 folder=$SERVED/$1
shift
serve=(vllm serve "$TARGET" --port 30000 --tensor-parallel-size "$GPUS" --gpu-memory-utilization 0.8)
if [ "$drafter" = plain ]; then
    measured=(--plain-server http://127.0.0.1:30000)
else
    [ -e "$folder" ] || specforge-dstill export --config "$CONFIG" --target "$TARGET" \
        --checkpoint "output/$NAME/$drafter-latest" --output-dir "$folder"
    drafts() { grep -q "\"$1\"" "$folder/config.json"; }
    # As export prints it: a DFlash block drafts all but its anchor, a DSpark block one more.
    tokens=$(sed -n '/"block_size"/{s/[^0-9]//g;p;q}' "$folder/config.json")
    method=dspark
    drafts DSparkDraftModel || { method=dflash tokens=$((tokens - 1)); }
    # DSpark, and sliding and full layers in one drafter, need vLLM's second runner.
    if [ $method = dspark ] || { drafts sliding_attention && drafts full_attention; }; then
        export VLLM_USE_V2_MODEL_RUNNER=1
    fi
    serve+=(--speculative-config "{\"method\": \"$method\", \"model\": \"$folder\", \"num_speculative_tokens\": $tokens}")
    serve+=(--per-request-spec-decode-metrics summary)  # for intervals of τ
    # In the tables a student is "student" and a teacher "teacher", as report knows them.
    measured=(--server http://127.0.0.1:30000 --drafter "${drafter#dstill_}")
fi
"${serve[@]}" &
server=$!
trap 'kill $server 2> /dev/null || true' EXIT
until curl --silent --fail http://127.0.0.1:30000/health > /dev/null; do
    kill -0 $server || exit 1  # it ended before it could answer
    sleep 5
done
# Of the run file its cache counts: whether its template was told the same.
specforge-dstill evaluate "${measured[@]}" --config "$CONFIG" --template-kwargs "$TEMPLATE" \
    --temperature 0,1 --concurrency 1,8,16,32 --max-new-tokens 4096 \
    --prompts gsm8k --prompts math500 --prompts humaneval --prompts mbpp --prompts mt-bench \
    --prompts swe-bench --output "results/$NAME" "$@"
