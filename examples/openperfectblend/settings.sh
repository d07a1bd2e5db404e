# What the scripts here share; set any of it in the environment instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."  # paths count from the repository, on a disk of all nodes

: "${NAME:=gpt-oss-120b}"                # a folder of configs/
: "${TARGET:=openai/gpt-oss-120b}"       # its target
: "${ANSWERS:=answers/$NAME.jsonl}"      # what the target says to OpenPerfectBlend's prompts
: "${NODES:=1}"                          # of this step
: "${NODE_RANK:=0}"                      # this one
: "${GPUS:=8}"                           # of a node
: "${TP:=2}"                             # GPUs that share a copy of the target (chosen: 2 x 80 GB)
: "${HEAD:=127.0.0.1}"                   # the first node
[ -n "${EFFORT+set}" ] || EFFORT='{"reasoning_effort": "medium"}'  # GPT-OSS's; others: EFFORT='{}'
CONFIG=configs/$NAME/dstill.yaml

ranks() {  # one process a GPU on every node; this node's part
    torchrun --nnodes "$NODES" --node_rank "$NODE_RANK" --nproc_per_node "$GPUS" \
        --master_addr "$HEAD" --master_port 29500 "$@"
}
