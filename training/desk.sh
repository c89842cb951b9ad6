#!/usr/bin/env bash
# The shipped desk model from nothing: simulated episodes, autoencoder, world model, judge. Some hours on two cores.
#
#   training/desk.sh               all steps in order; a finished one has its mark in outputs/desk/done and is skipped
#   training/desk.sh --bases       what Table 2 and the ablation start from: models with AdaLN alone
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

STEPS=(source target heldout streaming_autoencoder streaming_latents streaming compositor shipped head locator)
BASES=(source target heldout streaming_autoencoder streaming_latents streaming acg lacg locator)

call() {   # show a command, then run it
    echo "   $*"
    "$@"
}

# --- episodes: three robots to pretrain on, a fourth one to fine-tune on and to be judged on

step_source() {
    call "$BIN/worldmodel" collect --task place_a2b_left place_a2b_right babble --embodiment heron wren crane \
        --episodes 160 --size 64 64 --out $DESK/source
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
    call "$BIN/worldmodel" train-autoencoder configs/desk/streaming_autoencoder.yaml --resume
}

step_streaming_latents() {
    call "$BIN/worldmodel" encode-latents configs/desk/streaming.yaml --processes 2
}

step_streaming() {
    call "$BIN/worldmodel" train configs/desk/streaming.yaml --resume
}

step_compositor() {
    call "$BIN/worldmodel" train configs/desk/compositor.yaml --resume
}

step_shipped() {   # the folder that worldmodel/weights/desk is a copy of
    call "$BIN/worldmodel" export $DESK/compositor $DESK/shipped
}

step_head() {   # whose head.safetensors is worldmodel/weights/head: what picture heads of other robots start from
    call "$BIN/worldmodel" train configs/desk/head.yaml --resume start_from=$DESK/streaming/model head_from= \
        output=$DESK/head predictions.folder=$DESK/predictions predictions.augment=true fit.steps=3600 \
        "data.paths=[$DESK/source]" data.latents= data.action_space=pose_commands data.action_scale=shared data.clip.step=8
}

# --- bases of Table 2 and of the ablation: as `streaming`, but driven through AdaLN alone

step_acg() {
    call "$BIN/worldmodel" train configs/desk/streaming.yaml --resume \
        output=$DESK/acg model.actions.pose_maps=null
}

step_lacg() {   # latent actions, on the backbone of `streaming`
    call "$BIN/worldmodel" train configs/desk/streaming.yaml --resume output=$DESK/lacg \
        model.pretrained=$DESK/streaming/model model.actions.pose_maps=null model.regime=lacg \
        model.objective.idm_weight=1.0 fit.steps=1200 fit.optim.lr=1e-3 fit.optim.ema_decay=0.99 \
        fit.checkpoint_every=300 fit.validate_every=0 validation.num_rollouts=0
}

# --- judge of positions

step_locator() {
    call "$BIN/worldmodel" train-locator $DESK/source $DESK/target output=$DESK/locator \
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
for step in "${BASES[@]}"; do
    [[ " ${STEPS[*]} " == *" $step "* ]] || ALL+=("$step")
done

list() {
    for step in "${ALL[@]}"; do
        if is_done "$step"; then echo "done   $step"; else echo "to do  $step"; fi
    done
}

usage() {
    echo "usage: training/desk.sh [--bases | --list | --only STEP], where STEP is one of: ${ALL[*]}" >&2
    exit 2
}

case "${1:-}" in
    "")
        run_all "${STEPS[@]}"
        echo "the model: $DESK/shipped, the locator: $DESK/locator/locator"
        ;;
    --bases) run_all "${BASES[@]}" ;;
    --list) list ;;
    --only)
        [[ " ${ALL[*]} " == *" ${2:-no step} "* ]] || usage
        run "$2"
        ;;
    *) usage ;;
esac
