#!/usr/bin/env bash
# The shipped desk model from nothing: simulated episodes, autoencoder, world model, judge. Some hours on two cores.
#
#   training/desk.sh               all steps in order; a finished one has its mark in outputs/desk/done and is skipped
#   training/desk.sh --first       the steps of the first desk model instead, which Table 2 starts from
#   training/desk.sh --list        the steps of both, and which of them are done
#   training/desk.sh --only STEP   one step, also when it has its mark
#
# A step that was cut off goes on where it was when the script is called again. docs/desk.md says what each one makes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BIN=${BIN:-.venv/bin}   # where python and worldmodel are
DESK=outputs/desk
# One torch thread a process: on small machines two threads a process fight each other.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TOKENIZERS_PARALLELISM=${TOKENIZERS_PARALLELISM:-false}

STEPS=(source target heldout streaming_autoencoder streaming_latents streaming compositor shipped locator)
FIRST=(source source2 target heldout autoencoder_start autoencoder latents acg acg2 acg3 locator lacg)

call() {   # show a command, then run it
    echo "   $*"
    "$@"
}

# --- episodes: three robots to pretrain on, a fourth one to fine-tune on and to be judged on

collect_source() {
    call "$BIN/worldmodel" collect --task place_a2b_left place_a2b_right babble --embodiment heron wren crane \
        --episodes 160 --size 64 64 "$@"
}

step_source() {
    collect_source --out $DESK/source
}

step_source2() {
    collect_source --seed 1000 --out $DESK/source2
}

step_target() {
    call "$BIN/worldmodel" collect --task place_a2b_left --embodiment finch \
        --episodes 100 --size 64 64 --out $DESK/target
}

step_heldout() {
    call "$BIN/worldmodel" collect --task place_a2b_left place_a2b_right --embodiment finch \
        --episodes 64 --seed 100000 --size 64 64 --out $DESK/heldout
}

# --- the desk model: autoencoder, latents, world model, compositor

step_streaming_autoencoder() {
    call "$BIN/python" training/train_autoencoder.py configs/desk/streaming_autoencoder.yaml --resume
}

step_streaming_latents() {
    call "$BIN/python" training/encode_latents.py configs/desk/streaming.yaml --processes 2
}

step_streaming() {
    call "$BIN/python" training/train_world_model.py configs/desk/streaming.yaml --resume
}

step_compositor() {
    call "$BIN/python" training/train_world_model.py configs/desk/compositor.yaml --resume
}

step_shipped() {   # the folder that worldmodel/weights/desk is a copy of
    call "$BIN/python" training/ship_model.py $DESK/compositor $DESK/shipped
}

# --- the first desk model: autoencoder and latents

train_autoencoder() {
    call "$BIN/python" training/train_autoencoder.py configs/desk/autoencoder.yaml --resume "$@"
}

step_autoencoder_start() {
    train_autoencoder
}

step_autoencoder() {   # the same run goes on, with less weight on the foreground
    train_autoencoder moving_weight=2 fit.steps=1700
}

step_latents() {
    call "$BIN/python" training/encode_latents.py configs/desk/world_model.yaml \
        "data.paths=[$DESK/source,$DESK/source2]" --processes 2
}

# --- the first desk model: world model

train_world_model() {
    call "$BIN/python" training/train_world_model.py configs/desk/world_model.yaml --resume "$@"
}

step_acg() {
    train_world_model
}

step_acg2() {   # twice the episodes
    train_world_model start_from=$DESK/acg/model output=$DESK/acg2 fit.steps=6500 \
        "data.paths=[$DESK/source,$DESK/source2]" fit.optim.lr=1e-3 fit.optim.decay_fraction=0.7
}

step_acg3() {   # with the refiner
    train_world_model start_from=$DESK/acg2/model output=$DESK/acg3 model.refiner_width=64 \
        fit.steps=6000 fit.validate_every=750 \
        "data.paths=[$DESK/source,$DESK/source2]" fit.optim.lr=1e-3 fit.optim.decay_fraction=0.7
}

step_lacg() {   # the same backbone with latent actions; the LACG rows of Table 2 start from it
    train_world_model model.pretrained=$DESK/acg3/model output=$DESK/lacg \
        model.regime=lacg model.action_sum=true model.refiner_width=64 model.objective.idm_weight=1.0 \
        fit.steps=6000 fit.optim.lr=1e-3 fit.validate_every=500 validation.num_rollouts=2 \
        "data.paths=[$DESK/source,$DESK/source2]"
}

# --- judge of positions

step_locator() {
    call "$BIN/python" eval/train_locator.py $DESK/source $DESK/target output=$DESK/locator \
        fit.steps=2500 frames_per_episode=12 --resume
}

# ---

is_done() {
    [[ -e $DESK/done/$1 ]]
}

run() {
    echo "== $1"
    "step_$1"
    mkdir -p $DESK/done
    touch "$DESK/done/$1"
}

run_all() {
    for step in "$@"; do
        if is_done "$step"; then
            echo "== $step: done before"
        else
            run "$step"
        fi
    done
}

ALL=("${STEPS[@]}")
for step in "${FIRST[@]}"; do
    [[ " ${STEPS[*]} " == *" $step "* ]] || ALL+=("$step")
done

list() {
    for step in "${ALL[@]}"; do
        if is_done "$step"; then echo "done   $step"; else echo "to do  $step"; fi
    done
}

usage() {
    echo "usage: training/desk.sh [--first | --list | --only STEP], where STEP is one of: ${ALL[*]}" >&2
    exit 2
}

case "${1:-}" in
    "")
        run_all "${STEPS[@]}"
        echo "the model: $DESK/shipped, the locator: $DESK/locator/locator"
        ;;
    --first) run_all "${FIRST[@]}" ;;
    --list) list ;;
    --only)
        [[ " ${ALL[*]} " == *" ${2:-no step} "* ]] || usage
        run "$2"
        ;;
    *) usage ;;
esac
