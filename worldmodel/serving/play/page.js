"use strict";
const $ = id => document.getElementById(id);
// Axes of a hand: right, up, height, opening. Pads stand where their arm stands in the picture.
const KEYS = [
  {KeyD: [0, 1], KeyA: [0, -1], KeyW: [1, 1], KeyS: [1, -1], KeyE: [2, 1], KeyQ: [2, -1], KeyR: [3, 1], KeyF: [3, -1]},
  {KeyL: [0, 1], KeyJ: [0, -1], KeyI: [1, 1], KeyK: [1, -1], KeyO: [2, 1], KeyU: [2, -1], KeyY: [3, 1], KeyH: [3, -1]},
];
const PAD = [
  [2, -1, "Lower"], [1, 1, "Up"], [2, 1, "Raise"], null, [3, 1, "Open"],
  [0, -1, "Left"], [1, -1, "Down"], [0, 1, "Right"], null, [3, -1, "Close"],
];
const LEVELS = [  // of distrust: from which percentage on, word, color
  [60, "high: do not believe it", "var(--warn)"], [35, "raised: look twice", "var(--mid)"], [0, "low", "var(--good)"],
];
const FORMATS = {mp4: "Video (mp4)", lerobot: "LeRobot episode", robotwin: "RoboTwin episode"};
const SIZE = 512;  // least pixels of a canvas: small pictures are enlarged with a cubic filter
const REST = 10;  // frames that the last picture of the autopilot stays before the next scene
const state = {
  info: null, order: ["right", "left"], held: [new Set(), new Set()], pad: [new Set(), new Set()], tapped: [new Set(), new Set()], sliders: new Map(), hold: new Set(),
  drag: null, hands: null, paused: false, difference: false, pixels: false, queue: [], waiting: false, pending: [],
  shown: null, delays: [], times: [], follow: false, touched: false, socket: null, seed: 0, asked: 0, made: 0, scenes: 0,
};
window.play = state;  // tests look at it

// One message is under way at a time: what a person asked for goes before the next block.
function connect() {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(`${scheme}://${location.host}/play`);
  socket.binaryType = "arraybuffer";
  socket.onmessage = event => receive(event.data);
  socket.onclose = event => {
    say(event.reason || "The server closed the connection. Trying again.", true);
    state.waiting = false; state.pending = []; state.info = null; $("save").disabled = false;
    setTimeout(connect, 1500);
  };
  state.socket = socket;
}
function send(message) {
  if (state.socket.readyState !== WebSocket.OPEN) return;
  state.waiting = true; state.asked = performance.now();
  state.socket.send(JSON.stringify(message));
}
function command(message) { state.pending.push(message); if (!state.waiting) send(state.pending.shift()); }

async function receive(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let place = 4 + length;
  const pictures = await Promise.all(header.sizes.map(size => {
    const part = new Uint8Array(buffer, place, size); place += size;
    return createImageBitmap(new Blob([part], {type: "image/png"}));
  }));
  take(header, pictures);
  state.waiting = false;
  if (state.pending.length) send(state.pending.shift());
}

function take(header, pictures) {
  if (header.type === "error") { say(header.message, true); $("save").disabled = false; return; }
  if (header.type === "saved") { saved(header); return; }
  if (header.type === "hello") hello(header);
  const frames = [];
  for (let i = 0; i < header.count; i++)
    frames.push({dream: pictures[i], beside: header.beside ? pictures[header.count + i] : null});
  if (header.type !== "frames") { state.queue = frames; state.hands = null; state.rest = 0; state.scenes += 1; }
  else {
    state.queue.push(...frames);
    state.delays.push(performance.now() - state.asked); if (state.delays.length > 100) state.delays.shift();
    state.made += frames.length;
  }
  read(header);
}

function hello(info) {
  const isNew = !state.info;
  state.info = info; state.ordered = false;
  if (isNew) { state.seed = 0; $("seed").value = 0; state.follow = info.simulator && !state.touched; say(""); }
  $("about").textContent = `Model ${info.title}: ${(info.parameters / 1e6).toFixed(1)} million parameters, ` +
    `${info.width} x ${info.height} pixels, ${info.fps.toFixed(1)} frames per second, computed on this machine.`;
  const scale = Math.max(1, Math.ceil(SIZE / info.width));
  for (const id of ["dream", "beside"]) {
    $(id).width = scale * info.width; $(id).height = scale * info.height;
    $(id).style.aspectRatio = `${info.width} / ${info.height}`;
  }
  $("recording").hidden = !info.episodes.length;
  if (info.episodes.length) { $("episode").max = info.episodes.length - 1; frameRange(); }
  $("robot-line").hidden = info.robots.length < 2 || !info.simulator;
  $("robot").replaceChildren(...info.robots.map(name => new Option(name, name, false, name === info.robot)));
  $("autopilot").hidden = !info.simulator;
  $("format").replaceChildren(...info.formats.filter(f => f !== "robotwin" || info.simulator).map(f => new Option(FORMATS[f], f)));
  pads(info.sides); sliders(info.actions); help(info.sides); concepts(info.concepts);
  $("sliders-box").open = !info.sides.length;
}

function read(header) {
  const reading = header.reading || {};
  state.command = header.command; state.reading = reading;
  if (reading.hands) { state.hands = reading.hands; order(); }
  const alone = !header.beside;
  $("screens").classList.toggle("alone", alone);
  for (const id of ["beside-figure", "gap-box", "error-box", "difference"]) $(id).hidden = alone;
  $("beside-name").textContent = state.hands ? "Simulator" : "Recording";
  besideText();
  if (reading.distrust !== undefined) distrust(reading);
  if (reading.gap) $("gap").textContent = reading.gap.filter(g => g !== null).map(g => g.toFixed(1) + " px").join(", ") || "out of view";
  if (reading.error !== undefined) $("error").textContent = (reading.error / 2.55).toFixed(1) + " %";
  if (reading.frames !== undefined) $("length").textContent = (reading.frames / state.info.fps).toFixed(1) + " s";
  for (const [i, row] of [...document.querySelectorAll("#sliders input")].entries())
    if (!state.sliders.has(i)) { row.value = header.command[i]; label(i, header.command[i]); }
  followed(header.type === "frames" && reading.left === 0);
}

function distrust(reading) {
  const percent = Math.round(100 * reading.distrust), bar = $("distrust").firstElementChild;
  const [, word, color] = LEVELS.find(([from]) => percent >= from);
  $("distrust").setAttribute("aria-valuenow", percent); $("distrust").setAttribute("aria-valuetext", `${percent} %, ${word}`);
  bar.style.width = percent + "%"; bar.style.background = color;
  $("distrust-text").textContent = `${percent} %, ${word}`;
  $("distrust-more").title = `spread over noise ${reading.spread.toFixed(1)}, round trip ${reading.round_trip.toFixed(1)} gray levels`;
}

// At the end of what is followed: a page that nobody touched goes on to the next scene.
function followed(isOver) {
  if (state.follow && isOver) {
    state.rest += 4;
    if (state.touched) state.follow = false;
    else if (state.rest >= REST) reset(state.seed + 1);
  }
  $("autopilot").setAttribute("aria-pressed", state.follow);
  $("pill").hidden = !state.follow;
  const how = matchMedia("(pointer: coarse)").matches ? "Touch a button" : "Press W A S D or drag";
  $("pill").textContent = `${state.hands ? "Autopilot" : "Recorded commands"}. ${how} to take over.`;
}

// The arm that stands left in the picture gets the left keys.
function order() {
  const sides = Object.keys(state.hands);
  if (sides.length !== 2 || state.ordered) return;
  state.order = sides.sort((a, b) => state.hands[a][0] - state.hands[b][0]);
  state.ordered = true; pads(state.info.sides); help(state.info.sides);
}

function pads(sides) {
  $("pads").hidden = !sides.length;
  $("pads").replaceChildren(...state.order.filter(side => sides.includes(side)).map((side, hand) => {
    const box = document.createElement("div"), title = document.createElement("h2"), grid = document.createElement("div");
    title.innerHTML = `${["Left", "Right"][hand]} in the picture <small>the robot's ${side} arm</small>`;
    grid.className = "pad"; grid.setAttribute("role", "group"); grid.setAttribute("aria-label", title.textContent);
    for (const cell of PAD) grid.append(cell ? padButton(hand, title.textContent, ...cell) : document.createElement("span"));
    box.append(title, grid);
    return box;
  }));
}
function padButton(hand, title, axis, sign, text) {
  const code = Object.keys(KEYS[hand]).find(k => KEYS[hand][k][0] === axis && KEYS[hand][k][1] === sign);
  const button = document.createElement("button");
  button.innerHTML = `${text}<small>${code.slice(3)}</small>`;
  button.setAttribute("aria-label", `${title}: ${text}`);
  button.dataset.code = code;
  const hold = on => { if (on) hit(state.pad, hand, code); else state.pad[hand].delete(code); mark(); };
  button.onpointerdown = event => { button.setPointerCapture(event.pointerId); hold(true); };
  button.onpointerup = button.onpointercancel = button.onlostpointercapture = () => hold(false);
  button.onkeydown = event => { if (event.code === "Enter") hold(true); };
  button.onkeyup = button.onblur = () => hold(false);
  button.oncontextmenu = event => event.preventDefault();
  return button;
}
// A tap that ends before the next block is asked for still counts for that block.
function hit(where, hand, code) { where[hand].add(code); state.tapped[hand].add(code); mark(); }
function mark() {
  for (const button of document.querySelectorAll(".pad button")) {
    const code = button.dataset.code;
    button.classList.toggle("held", [0, 1].some(hand => state.held[hand].has(code) || state.pad[hand].has(code)));
  }
}

function help(sides) {
  const rows = [], words = ["move in the picture", "lower, raise", "open, close"];
  if (sides.length) state.order.forEach((side, hand) => {
    const keys = Object.keys(KEYS[hand]).map(k => `<kbd>${k.slice(3)}</kbd>`);
    [[2, 1, 3, 0], [5, 4], [6, 7]].forEach((pick, i) =>
      rows.push([pick.map(k => keys[k]).join(" "), `${["left", "right"][hand]} in the picture: ${words[i]}`]));
  });
  rows.push(["<kbd>T</kbd>", "autopilot"], ["<kbd>Space</kbd>", "pause"], ["<kbd>Backspace</kbd>", "step back"], ["<kbd>N</kbd>", "new scene"],
    ["<kbd>X</kbd>", "difference between dream and truth"], ["<kbd>P</kbd>", "pixels as they are"], ["<kbd>?</kbd>", "this help"]);
  $("help-table").innerHTML = rows.map(([keys, text]) => `<tr><td>${keys}</td><td>${text}</td></tr>`).join("");
}

function sliders(actions) {
  $("sliders").replaceChildren(...actions.map((action, i) => {
    const box = document.createElement("div"), name = document.createElement("label"), input = document.createElement("input");
    box.className = "slider"; name.htmlFor = input.id = `slider${i}`;
    name.append(action.name, document.createElement("span"));
    Object.assign(input, {type: "range", min: action.low, max: action.high, step: ((action.high - action.low) || 1) / 500});
    input.oninput = () => { state.sliders.set(i, +input.value); label(i, +input.value); };
    box.append(name, input);
    return box;
  }));
}
// A switch for everything that can be held still, whoever drives: keys, autopilot or a recording.
function concepts(names) {
  $("holding").hidden = !names.length; state.hold.clear();
  $("concepts").replaceChildren(...names.map(name => {
    const button = document.createElement("button");
    button.textContent = name.replace("_", " "); button.dataset.concept = name; button.setAttribute("aria-pressed", false);
    button.onclick = () => { const on = !state.hold.delete(name); if (on) state.hold.add(name); button.setAttribute("aria-pressed", on); };
    return button;
  }));
}

function label(i, value) { $("sliders").children[i].querySelector("span").textContent = (+value).toFixed(3); }

function gamepad(hands) {
  const dead = x => Math.abs(x) < 0.15 ? 0 : x;
  for (const pad of navigator.getGamepads ? navigator.getGamepads() : []) {
    if (!pad) continue;
    const down = i => pad.buttons[i] ? pad.buttons[i].value : 0;
    const values = [
      [dead(pad.axes[0]), -dead(pad.axes[1]), down(4) - down(6), down(12) - down(13)],
      [dead(pad.axes[2] || 0), -dead(pad.axes[3] || 0), down(5) - down(7), down(3) - down(0)],
    ];
    values.forEach((v, hand) => v.forEach((x, axis) => { hands[hand][axis] += x; }));
  }
}

function inputs() {
  const hands = [[0, 0, 0, 0], [0, 0, 0, 0]], unit = x => Math.max(-1, Math.min(1, x));
  for (const hand of [0, 1]) {
    for (const code of new Set([...state.held[hand], ...state.pad[hand], ...state.tapped[hand]]))
      hands[hand][KEYS[hand][code][0]] += KEYS[hand][code][1];
    state.tapped[hand].clear();
  }
  gamepad(hands);
  if (state.drag) {
    const {hand, from, to} = state.drag, at = state.hands && state.hands[state.order[hand]] || from, pull = 6;
    hands[hand][0] += unit(pull * (to[0] - at[0])); hands[hand][1] -= unit(pull * (to[1] - at[1]));
  }
  const named = {};
  state.order.forEach((side, hand) => { named[side] = hands[hand].map(unit); });
  const moved = Object.fromEntries(state.sliders);
  for (const [i, value] of state.sliders) if (state.command && Math.abs(state.command[i] - value) < 1e-4) state.sliders.delete(i);
  if (hands.flat().some(x => x) || Object.keys(moved).length) { state.follow = false; state.touched = true; }
  return {type: "step", hands: named, sliders: moved, follow: state.follow, hold: [...state.hold]};
}

// Frames are shown at the model's rate; the next block is asked for just in time for the last but one.
let last = 0;
function tick(now) {
  requestAnimationFrame(tick);
  if (!state.info) return;
  const pace = 1000 / state.info.fps;
  if (state.queue.length && now - last >= pace - 4) {
    last = now - last > 3 * pace ? now : last + pace;
    state.shown = state.queue.shift();
    draw(); rates(now);
  }
  const slowest = state.delays.length ? Math.max(...state.delays.slice(-5)) : 100;
  const spare = state.queue.length * pace - (slowest + 30);
  if (!state.paused && !state.waiting && state.queue.length <= 2 && spare < pace) send(inputs());
}
function rates(now) {
  state.times.push(now); while (state.times.length && now - state.times[0] > 3000) state.times.shift();
  const shown = state.times.length - 1;
  $("fps").textContent = shown > 0 ? (1000 * shown / (now - state.times[0])).toFixed(1) : "0";
  const sorted = [...state.delays].sort((a, b) => a - b);
  if (sorted.length) $("delay").textContent = Math.round(sorted[Math.floor(0.95 * (sorted.length - 1))]) + " ms";
}

function draw() {
  if (!state.shown) return;
  paint("dream", state.shown.dream);
  if (state.shown.beside) paint("beside", state.difference ? differenceOf(state.shown) : state.shown.beside);
}
function paint(id, picture) {
  const canvas = $(id), context = canvas.getContext("2d");
  context.imageSmoothingEnabled = !state.pixels; context.imageSmoothingQuality = "high";
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
}
function differenceOf({dream, beside}) {
  const {width, height} = dream, made = new OffscreenCanvas(width, height);
  const context = made.getContext("2d", {willReadFrequently: true});
  const [a, b] = [dream, beside].map(picture => { context.drawImage(picture, 0, 0); return context.getImageData(0, 0, width, height); });
  for (let i = 0; i < a.data.length; i++) if (i % 4 < 3) a.data[i] = Math.min(255, 3 * Math.abs(a.data[i] - b.data[i]));
  context.putImageData(a, 0, 0);
  return made;
}

let fading = 0;
function say(text, bad = false) {
  $("note").textContent = text; $("note").classList.toggle("bad", bad);
  clearTimeout(fading);
  if (state.info && text) fading = setTimeout(() => say(""), 12000);
}
function saved(header) {
  $("save").disabled = false;
  say(`Saved to ${header.path}`);
  if (!header.name.endsWith(".mp4")) return;
  const link = document.createElement("a");
  link.href = `saved/${header.name}`; link.textContent = "Download"; link.download = header.name;
  $("note").append(" ", link);
}
function save() { $("save").disabled = true; say("Saving the drive"); command({type: "save", format: $("format").value}); }

function reset(seed) { state.seed = seed; $("seed").value = seed; state.sliders.clear(); command({type: "reset", seed}); }
function press(name, id, on) { state[name] = on; $(id).setAttribute("aria-pressed", on); draw(); }
function pause(on = !state.paused) { press("paused", "pause", on); $("pause").firstChild.textContent = on ? "Go on" : "Pause"; }
function back() { state.follow = false; state.touched = true; pause(true); command({type: "back"}); }
function difference() { press("difference", "difference", !state.difference); besideText(); }
function besideText() {
  const what = state.hands ? "physics, same commands" : "what the camera saw";
  $("beside-text").textContent = state.difference ? "difference, three times" : what;
}
function pixels() {
  press("pixels", "pixels", !state.pixels);
  for (const id of ["dream", "beside"]) $(id).classList.toggle("pixels", state.pixels);
}
function autopilot() {
  state.touched = true; pause(false);
  if (state.follow) { state.follow = false; followed(false); } else { state.follow = true; reset(state.seed); }
}
function newScene() { state.touched = true; pause(false); reset(state.seed + 1); }
function load() {
  state.follow = $("follow").checked; state.touched = true; state.sliders.clear(); pause(false);
  command({type: "load", episode: +$("episode").value, frame: +$("frame").value});
}
function frameRange() {
  const count = state.info.episodes[+$("episode").value] || 1;
  $("frame").max = count - 2; $("frame-text").textContent = `${$("frame").value} of ${count}`;
}

$("reset").onclick = () => { state.touched = true; reset(Math.max(0, Math.floor(+$("seed").value) || 0)); };
$("robot").onchange = () => { state.sliders.clear(); command({type: "robot", robot: $("robot").value, seed: state.seed}); $("robot").blur(); };
$("next").onclick = newScene; $("autopilot").onclick = autopilot; $("pixels").onclick = pixels; $("load").onclick = load;
$("pause").onclick = () => pause(); $("back").onclick = back; $("difference").onclick = difference; $("save").onclick = save;
$("episode").oninput = $("frame").oninput = frameRange;
$("help-open").onclick = () => $("help").showModal();
const theme = value => { document.documentElement.dataset.theme = value; $("theme").textContent = value === "dark" ? "Light" : "Dark"; };
$("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

const SHORTCUTS = {Space: () => pause(), Backspace: back, KeyN: newScene, KeyX: difference, KeyP: pixels, KeyT: autopilot};
addEventListener("keydown", event => {
  if (event.target.matches("input:not([type=range]), select") || event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.key === "?") { $("help").showModal(); return; }
  const hand = KEYS.findIndex(keys => event.code in keys);
  if (hand >= 0) { if (!event.repeat) hit(state.held, hand, event.code); event.preventDefault(); return; }
  if (event.repeat && event.code !== "Backspace") return;
  const done = SHORTCUTS[event.code];
  if (done && !(event.code === "Space" && event.target.matches("button, summary"))) { done(); event.preventDefault(); }
});
addEventListener("keyup", event => { for (const held of state.held) held.delete(event.code); mark(); });
addEventListener("blur", () => { for (const held of state.held) held.clear(); mark(); });
const at = event => { const box = $("dream").getBoundingClientRect();
  return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height]; };
$("dream").onpointerdown = event => {
  const to = at(event), far = side => Math.hypot(to[0] - state.hands[side][0], to[1] - state.hands[side][1]);
  const hand = state.hands ? (far(state.order[0]) <= far(state.order[1]) ? 0 : 1) : (to[0] < 0.5 ? 0 : 1);
  state.drag = {hand, from: to, to}; $("dream").setPointerCapture(event.pointerId);
};
$("dream").onpointermove = event => { if (state.drag) state.drag.to = at(event); };
$("dream").onpointerup = $("dream").onpointercancel = () => { state.drag = null; };
connect();
requestAnimationFrame(tick);
