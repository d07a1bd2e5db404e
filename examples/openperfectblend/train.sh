#!/bin/bash
# One stage on every GPU of every node: bash train.sh dstill_teacher|dstill_collect|dstill_student|dflash
source "$(dirname "$0")/settings.sh"

mode=$1 latest=output/$NAME/$1-latest
shift
if [ -e "$latest" ]; then  # stopped before: go on
    set -- "training.resume_from=$latest" "$@"
fi
ranks -m specforge.train --config "$CONFIG" --mode "$mode" "$@"
