# What the scripts here share; set any of it in the environment instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."  # paths count from the repository, on a disk of all nodes

: "${NAME:=gpt-oss-120b}"                # a folder of configs/
CONFIG=configs/$NAME/dstill.yaml
: "${TARGET:=$(sed -n 's/^  target_model_path: *\([^ ]*\).*/\1/p' "$CONFIG")}"  # or another copy of it
: "${ANSWERS:=answers/$NAME.jsonl}"      # what the target says to OpenPerfectBlend's prompts
: "${NODES:=1}"                          # of this step
: "${NODE_RANK:=0}"                      # this one
: "${GPUS:=8}"                           # of a node
: "${TP:=2}"                             # GPUs that share a copy of the target (chosen: 2 x 80 GB)
: "${HEAD:=127.0.0.1}"                   # the first node

thinks='{"enable_thinking": true}'
case $NAME in
    gpt-oss-*) parser=gpt-oss thinks='{"reasoning_effort": "medium"}' ;;  # the paper's effort
    gemma-4-*) parser=gemma4 ;;
    nemotron-*) parser=nemotron_3 ;;
    *) parser=qwen3 ;;
esac
: "${PARSER:=$parser}"                   # SGLang's, which sets the reasoning apart
: "${TEMPLATE:=$thinks}"                 # for the chat template: in answers, cache and benchmarks

ranks() {  # one process a GPU on every node; this node's part
    torchrun --nnodes "$NODES" --node_rank "$NODE_RANK" --nproc_per_node "$GPUS" \
        --master_addr "$HEAD" --master_port 29500 "$@"
}
