#!/bin/bash
# What it takes in bytes and hours, before it is started. The number of prompts is the data set's;
# with ANSWERS at hand: --conversations "$ANSWERS" --tokenize 10000 in the place of --samples … --tokens-per-sample ….
source "$(dirname "$0")/settings.sh"

estimate() {
    specforge-dstill estimate --config "$CONFIG" --dtype "${DTYPE:-bf16}" \
        --samples 1420909 --tokens-per-sample "${TOKENS:-1500}" "$@"
}
echo "== Stage I: 16 nodes of 8 A100"
estimate --ranks 128 --teacher-seconds-per-step "${TEACHER:-0.4}"
echo "== the rest: 4 nodes of 8 H100"
estimate --ranks 32 --capture-tokens-per-second "${CAPTURE:-20000}" \
    --collect-blocks-per-second "${COLLECT:-1400}" --student-seconds-per-step "${STUDENT:-0.12}"
