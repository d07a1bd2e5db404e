#!/bin/bash
# One stage on every GPU of every node, perhaps with options, of which run_id names its checkpoints:
#   bash train.sh dstill_teacher|dstill_collect|dstill_student|dflash [section.field=value …]
source "$(dirname "$0")/settings.sh"

mode=$1 run=$1
shift
for word in "$@"; do
    case $word in run_id=*) run=${word#run_id=} ;; esac
done
latest=output/$NAME/$run-latest
if [ -e "$latest" ]; then  # stopped before: go on
    set -- "training.resume_from=$latest" "$@"
fi
ranks -m specforge.train --config "$CONFIG" "model.target_model_path=$TARGET" --mode "$mode" "$@"
