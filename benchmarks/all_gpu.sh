#!/usr/bin/env bash
# Measures the GPU figures of RESULTS.md on one card, each beside its peer, in under 20 minutes.
#
#   bash benchmarks/all_gpu.sh [PEERS] [DATA]
#
# PEERS holds copies of nanoGPT and gpt-fast; DATA holds multi30k/train.en and train.de and
# tatoeba-en-de/train.tsv.xz. What is missing there is left out, or replaced by random sentences.
set -u
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD:$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
[ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ] && python=.venv/bin/python
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "all_gpu.sh: $python finds no GPU; install PyTorch with CUDA, or set PYTHON to an interpreter that has it" >&2
  exit 1
fi
peers=${1:-peers}
data=${2:-data}
began=$SECONDS

measure() {  # measure LIMIT MODULE [FLAG ...]: stops after LIMIT seconds
  local limit=$1
  shift
  echo
  echo "== $((SECONDS - began)) s: $*"
  timeout "$limit" "$python" -W ignore -m "benchmarks.$@" || echo "-- stopped with status $?"
}

nanogpt=() gpt_fast=() pairs=() sentences=() texts=()
[ -d "$peers/nanoGPT" ] && nanogpt=(--nanogpt-path "$peers/nanoGPT")
[ -d "$peers/gpt-fast" ] && gpt_fast=(--gpt-fast "$peers/gpt-fast")
[ -d "$data/multi30k" ] && pairs=(--data "$data/multi30k/train.en" "$data/multi30k/train.de")
[ -d "$data/multi30k" ] && sentences=(--data "$data/multi30k/train.en")
[ -d "$data/tatoeba-en-de" ] && texts=(--data "$data/tatoeba-en-de/train.tsv.xz")

# Serving
measure 60 serving.engine_step --kinds greedy top-k
measure 120 serving.serve_gpu
measure 60 serving.fairness --rounds 0 --preset gpt2 --device cuda --text 512

# Decoding
measure 120 decoding.decode_gpu --jobs gpt2:1 --sampled "${gpt_fast[@]}"
measure 120 decoding.decode_gpu --jobs gpt2:32 --sampled --peer

# Training
measure 240 training.train "${nanogpt[@]}" --no-biases --fp8
measure 60 training.optimizer --preset gpt2
measure 90 training.translate_train "${pairs[@]}" --peer-steps 24
measure 90 training.translate_train --preset rnn-attention --batch-tokens 16384 \
  --peer-steps 16 "${texts[@]}"
measure 90 training.translate_train --preset bert-small --batch-tokens 16384 --steps 120 \
  --peer-steps 16 "${sentences[@]}"

# Long contexts
measure 120 attention.sparse --lengths 4096 16384

# GPT-2 XL, whose peers compile longest
measure 360 training.train "${nanogpt[@]}" --preset gpt2-xl --batch 16 --steps 10 --no-biases --fp8
measure 180 decoding.decode_gpu --jobs gpt2-xl:1 --sampled "${gpt_fast[@]}"
measure 120 training.train "${nanogpt[@]}" --nanogpt

echo
echo "== $((SECONDS - began)) s in all"
