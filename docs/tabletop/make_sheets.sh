#!/bin/sh
# Makes the pictures of this folder: sh docs/tabletop/make_sheets.sh (about two minutes on one core).
set -e
tasks="place_a2b_left place_a2b_right babble"
out=${1:-outputs/tabletop}
worldmodel=${WORLDMODEL:-.venv/bin/worldmodel}
for robot in finch heron wren crane swift; do
    $worldmodel collect --task $tasks --embodiment $robot --episodes 1 --size 64 64 --out $out/desk/$robot
    $worldmodel inspect $out/desk/$robot --out $out/sheets/$robot
    cp $out/sheets/$robot/contact_sheet.png docs/tabletop/desk_64x64_$robot.png
done
$worldmodel collect --task place_a2b_left --embodiment finch heron wren crane --episodes 1 --size 320 240 \
    --camera head --out $out/head
$worldmodel inspect $out/head --out $out/sheets/head
cp $out/sheets/head/contact_sheet.png docs/tabletop/head_320x240.png
$worldmodel collect --task place_a2b_left --embodiment finch --episodes 6 --size 64 64 --randomize --out $out/random
$worldmodel inspect $out/random --out $out/sheets/random
cp $out/sheets/random/contact_sheet.png docs/tabletop/desk_64x64_randomize.png
