"use strict";
// The page of the playground: the form and the address hold a request, the program in WebAssembly answers it,
// and the answer is drawn. The program is apps/playground; scripts/site.py puts it into WASM, packed by gzip,
// as base64.

const element = (id) => document.getElementById(id);
const START = {
    policy: "user:<user> THROTTLE 15 30 60 1",
    pattern: "bursts", rate: 60, burst: 20, gap: 20, clients: 1, seconds: 120, retry: "never", seed: 1, watch: 1, call: 17,
    log: "",
};
// The longest log that is part of the address.
const LONGEST_LOG = 4000;

// The numbers of the traffic: label, smallest and largest value of the slider, and the patterns that have it.
const NUMBERS = {
    rate: ["calls a minute", 1, 600, "steady random"],
    burst: ["calls at once", 1, 100, "bursts"],
    gap: ["gap in s", 1, 120, "bursts"],
    clients: ["clients", 1, 100, "steady bursts random storm"],
    seconds: ["length in s", 5, 600, "steady bursts random storm"],
    seed: ["seed", 1, 100, "random storm bursts steady"],
    watch: ["client drawn", 1, 100, "steady bursts random storm log"],
};

// The arguments of each kind: name, the largest value of its slider (none for words), and a first value.
const quantity = ["quantity", 20, "1"];
const period = ["period", 120, "60"];
const KINDS = {
    THROTTLE: [["max_burst", 100, "15"], ["count", 100, "30"], period, quantity],
    FUNNEL: [["capacity", 100, "16"], ["count", 100, "30"], period, quantity],
    BUCKET: [["capacity", 100, "16"], ["count", 100, "30"], period, quantity],
    FIXED: [["limit", 100, "30"], ["window", 120, "60"], quantity],
    WINDOW: [["limit", 100, "30"], period, quantity],
    LOG: [["limit", 100, "30"], period, quantity],
    LEASE: [["limit", 100, "5"], ["lease", 60, "10"], ["holder", 0, "<call>"]],
};

const storm = { pattern: "storm", clients: 60, seconds: 120, call: 30 };
const EXAMPLES = {
    "CL.THROTTLE: a burst, then a rate": {},
    "CL.FUNNEL: a bucket with free space": { policy: "user:<user> FUNNEL 16 30 60 1" },
    "CL.BUCKET: a bucket with tokens": { policy: "user:<user> BUCKET 16 30 60 1" },
    "CL.FIXED: a number per window": { policy: "user:<user> FIXED 30 60 1", pattern: "steady", rate: 60, call: 31 },
    "CL.FIXED: a number per hour of the calendar": { policy: "user:<user> FIXED 100 HOUR 1", pattern: "random", rate: 3, seconds: 7200, call: 101 },
    "CL.WINDOW: a sliding window, estimated": { policy: "user:<user> WINDOW 30 60 1", pattern: "steady", rate: 60, seconds: 240, call: 31 },
    "CL.LOG: a sliding window, exact": { policy: "user:<user> LOG 30 60 1", pattern: "bursts", burst: 25, gap: 25, call: 31 },
    "CL.ACQUIRE: places, each for 10 seconds": { policy: "jobs LEASE 5 10 <call>", pattern: "random", rate: 60, clients: 20, call: 10 },
    "CL.MTAKE: a second and a minute at once": { policy: "{<user>}:s THROTTLE 4 5 1 1 {<user>}:m FIXED 60 60 1", pattern: "random", rate: 120, call: 70 },
    "SHADOW: a stricter limit on trial": { policy: "{<user>}:now THROTTLE 15 30 60 1 {<user>}:next SHADOW THROTTLE 5 30 60 1" },
    "A retry storm: all come back when told": { ...storm, policy: "api THROTTLE 9 60 60 1", retry: "told" },
    "The same storm with jitter": { ...storm, policy: "api THROTTLE 9 60 60 1", retry: "jitter" },
};

let state = { ...START };
let picture = null;
let limiters = [];
let unit = "S";

// ---- the program ----

let program = null;

async function load() {
    const packed = Uint8Array.from(atob(WASM), (character) => character.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    program = await WebAssembly.compile(await new Response(stream).arrayBuffer());
}

// Runs the program once: text to its standard input, text from its standard output. It has no clock and no files.
function run(input) {
    let unread = new TextEncoder().encode(input);
    const written = [];
    let memory = null;
    const buffers = (at, count) => {
        const view = new DataView(memory.buffer);
        return Array.from({ length: count }, (_, buffer) =>
            new Uint8Array(memory.buffer, view.getUint32(at + 8 * buffer, true), view.getUint32(at + 8 * buffer + 4, true)));
    };
    const answer = (at, number) => (new DataView(memory.buffer).setUint32(at, number, true), 0);
    const system = {
        environ_sizes_get: (count, size) => answer(count, 0) || answer(size, 0),
        environ_get: () => 0,
        clock_time_get: (_clock, _precision, at) => (new DataView(memory.buffer).setBigUint64(at, 0n, true), 0),
        fd_read: (_file, at, count, size) => {
            let read = 0;
            for (const buffer of buffers(at, count)) {
                const part = unread.subarray(0, buffer.length);
                buffer.set(part);
                unread = unread.subarray(part.length);
                read += part.length;
            }
            return answer(size, read);
        },
        fd_write: (_file, at, count, size) => {
            const parts = buffers(at, count).map((buffer) => buffer.slice());
            written.push(...parts);
            return answer(size, parts.reduce((sum, part) => sum + part.length, 0));
        },
        proc_exit: (code) => { throw new Error(`the program has ended with ${code}`); },
    };
    const instance = new WebAssembly.Instance(program, { wasi_snapshot_preview1: system });
    memory = instance.exports.memory;
    instance.exports._start();
    const decoder = new TextDecoder();
    return written.map((part) => decoder.decode(part, { stream: true })).join("") + decoder.decode();
}

// ---- the state: form, address ----

function readAddress() {
    state = { ...START };
    for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
        if (name in START) {
            state[name] = typeof START[name] === "number" ? whole(value, START[name]) : value;
        }
    }
    limiters = [];
}

function address() {
    const changed = Object.entries(state).filter(([name, value]) => value !== START[name] && (name !== "log" || value.length <= LONGEST_LOG));
    return "#" + new URLSearchParams(changed);
}

function whole(text, otherwise) {
    const number = Number(text);
    return Number.isInteger(number) && number >= 0 && number <= 4294967295 ? number : otherwise;
}

function policyOf() {
    const parts = limiters.map(({ key, shadow, kind, arguments: words }) => [key, shadow ? "SHADOW" : "", kind, ...words].filter(Boolean).join(" "));
    return parts.join(" ") + (unit === "S" ? "" : ` ${unit}`);
}

// At once, in the event that has changed the state: nothing waits for other tasks or processes of the browser.
let took = null;
function update() {
    if (!program) return;
    const begin = performance.now();
    try {
        const answer = JSON.parse(run(JSON.stringify(state)));
        const answered = performance.now();
        show(answer);
        took = { program: answered - begin, page: performance.now() - answered };
    } catch (error) {
        show({ error: String(error) });
    }
    clearTimeout(toKeep);
    toKeep = setTimeout(keepAddress, 300);
}

// Not with each step of a slider: browsers refuse an address that changes more than a few times a second.
let toKeep = 0;
function keepAddress() {
    history.replaceState(null, "", address());
}

// ---- what is shown ----

const count = (number) => number.toLocaleString("en");
const escaped = (text) => String(text).replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);

function show(answer) {
    const { error } = answer;
    element("error").hidden = !error && !answer.cut && !answer.unreadable?.[0];
    element("error").textContent = [
        error,
        answer.cut ? "Only the first 100,000 calls are shown." : "",
        answer.unreadable?.[0] ? `${count(answer.unreadable[0])} lines cannot be read. The first: ${answer.unreadable[1]}` : "",
    ].filter(Boolean).join(" ");
    fillTraffic();
    if (!("bins" in answer)) {
        element("pictures").classList.add("stale");
        return;
    }
    picture = answer;
    const same = limiters.length === picture.limiters.length && policyOf() === state.policy;
    if (!same) {
        limiters = picture.limiters.map(({ key, shadow, kind, arguments: words }) => ({ key, shadow, kind, arguments: [...words] }));
        unit = picture.unit;
        buildCards();
    }
    document.querySelectorAll("#cards .words").forEach((words, at) => { words.textContent = picture.limiters[at]?.words; });
    const policy = element("policy");
    if (document.activeElement !== policy) policy.value = state.policy;
    element("unit").value = unit;
    const sums = [0, 1, 2].map((kind) => picture.bins.reduce((sum, bin) => sum + bin[kind], 0));
    const share = (part) => `${(100 * part / Math.max(1, picture.calls)).toFixed(1)} %`;
    element("summary").textContent = `${count(picture.calls)} calls: ${count(sums[0])} admitted (${share(sums[0])}), ${count(sums[1])} refused (${share(sums[1])})`
        + (picture.repeated ? `; ${count(picture.repeated)} of them come again after a refusal` : "")
        + (sums[2] ? `; ${count(sums[2])} meet no limiter or are errors` : "") + ".";
    draw();
    explain();
}

function draw() {
    if (!picture) return;
    const svg = element("chart");
    const width = Math.max(280, svg.clientWidth), left = 8, right = 8, bars = 150, held = 90, gap = 34;
    const inner = width - left - right, bins = picture.bins.length, step = inner / bins;
    const most = Math.max(1, ...picture.bins.map((bin) => bin[0] + bin[1] + bin[2]));
    const height = 22 + bars + picture.limiters.length * (gap + held) + 24;
    const parts = [`<defs><pattern id="hatch" width="4" height="4" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="4" height="4" fill="var(--no)"/><rect width="1" height="4" fill="var(--paper)"/></pattern></defs>`];
    const seconds = picture.length / 1000;
    parts.push(`<text x="${left}" y="14">Calls, at most ${count(most)} in ${span(seconds / bins)}</text>`);
    let floor = 22 + bars;
    picture.bins.forEach((bin, at) => {
        let y = floor;
        ["ok", "no", "other"].forEach((kind, index) => {
            const tall = bin[index] / most * bars;
            if (tall > 0) parts.push(`<rect class="${kind}" x="${(left + at * step).toFixed(1)}" y="${(y -= tall).toFixed(1)}" width="${Math.max(1, step * .85).toFixed(1)}" height="${tall.toFixed(1)}"/>`);
        });
    });
    parts.push(`<line class="axis" x1="${left}" x2="${width - right}" y1="${floor}" y2="${floor}"/>`);
    for (const limiter of picture.limiters) {
        const top = floor + gap;
        floor = top + held;
        const high = Math.max(1, limiter.most);
        const points = limiter.remaining.map((value, at) => value === null ? null : [left + at / 2 * step, floor - Math.min(1, Math.max(0, value / high)) * held]).filter(Boolean)
            .map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`);
        const rest = ` ${limiter.kind}${limiter.shadow ? " in shadow" : ""}: ${width < 500 ? "" : "what could be taken, "}at most ${count(limiter.most)}`;
        const letters = Math.max(4, Math.floor(inner / 8) - rest.length);
        const key = limiter.key.length > letters ? `${limiter.key.slice(0, letters - 1)}…` : limiter.key;
        parts.push(`<text x="${left}" y="${top - 10}">${escaped(key + rest)}</text>`);
        if (points.length) {
            parts.push(`<polygon class="area" points="${left},${floor} ${points.join(" ")} ${points.at(-1).split(",")[0]},${floor}"/><polyline class="held" points="${points.join(" ")}"/>`);
        }
        parts.push(`<line class="axis" x1="${left}" x2="${width - right}" y1="${floor}" y2="${floor}"/>`);
    }
    const ticks = width < 500 ? 4 : 8;
    for (let tick = 0; tick <= ticks; tick++) {
        const anchor = tick === 0 ? "start" : tick === ticks ? "end" : "middle";
        parts.push(`<text class="faint" x="${left + inner * tick / ticks}" y="${floor + 18}" text-anchor="${anchor}">${span(seconds * tick / ticks)}</text>`);
    }
    if (picture.call) {
        const x = left + Math.min(1, picture.call.at / 1e6 / seconds) * inner;
        parts.push(`<line class="now" x1="${x}" x2="${x}" y1="18" y2="${floor}"/>`);
    }
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    svg.setAttribute("aria-label", `Calls over time, and what the limiters hold. ${element("summary").textContent}`);
    svg.innerHTML = parts.join("");
}

function span(seconds) {
    const round = (number) => +number.toFixed(number < 10 ? 2 : 1);
    if (seconds > 0 && seconds < 1) return `${round(seconds * 1000)} ms`;
    if (seconds < 300) return `${round(seconds)} s`;
    if (seconds < 7200) return `${round(seconds / 60)} min`;
    return seconds < 172800 ? `${round(seconds / 3600)} h` : `${round(seconds / 86400)} d`;
}

const FIVE = ["limited", "limit", "remaining", "retry_after", "reset_after"];

function explain() {
    const { call } = picture;
    const range = element("call");
    range.max = Math.max(1, picture.calls);
    range.value = call?.number ?? 1;
    element("previous").disabled = !call?.previous_refused;
    element("next").disabled = !call?.next_refused;
    const again = call?.attempt ? `, attempt ${call.attempt + 1}` : "";
    element("which").textContent = call ? `${count(call.number)} of ${count(picture.calls)}, at ${span(call.at / 1e6)}${call.client ? `, ${call.client}` : ""}${again}` : "none";
    range.setAttribute("aria-valuetext", element("which").textContent);
    const table = (row) => `<table><caption>${row.key ? `${escaped(row.key)}${row.shadow ? " (in shadow: it refuses nothing)" : ""}` : "All together"}</caption><tbody>`
        + row.five.map((number, at) => `<tr><th scope="row">${FIVE[at]}</th><td>${number}</td><td>${escaped(row.words[at])}</td></tr>`).join("")
        + (row.taken ? `<tr><th scope="row">taken</th><td>${row.taken[0]}</td><td>${escaped(row.taken[1])}</td></tr>` : "") + "</tbody></table>";
    element("reply").innerHTML = call ? call.rows.map(table).join("") || "<p>This call meets no limiter, or is an error.</p>" : "<p>No calls.</p>";
    for (const name of ["command", "python", "rust"]) element(name).textContent = picture.copy[name];
}

// ---- the form ----

function number(id, name, value, most, onInput) {
    const box = document.createElement("div");
    box.className = most ? "number" : "number wide";
    const label = document.createElement("label");
    label.textContent = name;
    label.htmlFor = id;
    const text = document.createElement("input");
    Object.assign(text, { type: "text", id, value, spellcheck: false, autocomplete: "off" });
    if (most) {
        const range = document.createElement("input");
        const set = () => {
            range.max = Math.max(most, whole(text.value, 0));
            range.value = whole(text.value, 0);
        };
        Object.assign(range, { type: "range", min: name === "max_burst" || name === "quantity" ? 0 : 1, id: `${id}-range` });
        range.setAttribute("aria-label", `${name}, slider`);
        range.addEventListener("input", () => { text.value = range.value; onInput(text.value); });
        text.addEventListener("input", () => { set(); onInput(text.value); });
        text.setAttribute("inputmode", "numeric");
        text.sync = set;
        set();
        box.append(label, range, text);
    } else {
        text.addEventListener("input", () => onInput(text.value));
        box.append(label, text);
    }
    return box;
}

function buildCards() {
    element("cards").replaceChildren(...limiters.map((limiter, at) => {
        const card = document.createElement("fieldset");
        const id = `limiter${at + 1}`;
        card.innerHTML = `<legend>Limiter ${at + 1}</legend>
            <div class="number wide"><label for="${id}-kind">kind</label><select id="${id}-kind">${Object.keys(KINDS).map((kind) => `<option${kind === limiter.kind ? " selected" : ""}>${kind}</option>`).join("")}</select></div>`;
        const changed = () => { state.policy = policyOf(); update(); };
        card.append(number(`${id}-key`, "key", limiter.key, 0, (value) => { limiter.key = value.trim() || "key"; changed(); }));
        const known = KINDS[limiter.kind];
        // A window of the calendar may have further words, which end before the quantity.
        limiter.arguments.forEach((value, position) => {
            const last = position === limiter.arguments.length - 1;
            const [name, most] = last ? known.at(-1) : known[position] && position < known.length - 1 ? known[position] : ["option", 0];
            const large = name === "period" || name === "lease" || name === "window" ? { S: 1, MS: 1000, US: 1000000 }[unit] : 1;
            const slider = /^\d+$/.test(value) ? most * large : 0;
            card.append(number(`${id}-${name}${name === "option" ? position : ""}`, name, value, slider, (text) => { limiter.arguments[position] = text.trim() || "0"; changed(); }));
        });
        const row = document.createElement("p");
        row.className = "row";
        row.innerHTML = `<label><input type="checkbox" id="${id}-shadow"${limiter.shadow ? " checked" : ""}> in shadow: refuses nothing</label> <button type="button" id="${id}-remove"${limiters.length < 2 ? " disabled" : ""} aria-label="Remove limiter ${at + 1}">Remove</button>`;
        const words = document.createElement("p");
        words.className = "words";
        card.append(row, words);
        card.querySelector("select").addEventListener("change", (event) => {
            limiter.kind = event.target.value;
            limiter.arguments = KINDS[limiter.kind].map(([, , first]) => first);
            rebuild(`${id}-kind`);
        });
        row.querySelector("input").addEventListener("change", (event) => { limiter.shadow = event.target.checked; changed(); });
        row.querySelector("button").addEventListener("click", () => { limiters.splice(at, 1); rebuild("add"); });
        return card;
    }));
}

function rebuild(focus) {
    state.policy = policyOf();
    buildCards();
    element(focus)?.focus();
    update();
}

function buildTraffic() {
    element("numbers").replaceChildren(...Object.entries(NUMBERS).map(([name, [label, , most, patterns]]) => {
        const box = number(name, label, state[name], most, (value) => { state[name] = whole(value, START[name]); update(); });
        box.dataset.for = patterns;
        return box;
    }));
}

function fillTraffic() {
    for (const name of [...Object.keys(NUMBERS), "pattern", "retry", "log"]) {
        const input = element(name);
        if (document.activeElement !== input && String(input.value) !== String(state[name])) input.value = state[name];
        input.sync?.();
    }
    document.querySelectorAll("[data-for]").forEach((box) => { box.hidden = !box.dataset.for.split(" ").includes(state.pattern); });
}

function listen() {
    const on = (id, event, act) => element(id).addEventListener(event, act);
    element("example").innerHTML = `<option value="">choose one</option>` + Object.keys(EXAMPLES).map((name) => `<option>${escaped(name)}</option>`).join("");
    on("example", "change", () => {
        if (!element("example").value) return;
        state = { ...START, ...EXAMPLES[element("example").value] };
        update();
    });
    on("reset", "click", () => {
        state = { ...START };
        element("example").value = "";
        update();
    });
    on("policy", "input", () => { state.policy = element("policy").value.replace(/\s+/g, " ").trim(); update(); });
    on("unit", "change", () => { unit = element("unit").value; rebuild("unit"); });
    on("add", "click", () => {
        // In the slot of the first limiter: a cluster refuses a call with keys of several slots.
        const [first] = limiters;
        const tag = first?.key.match(/\{([^}]+)\}/)?.[1] ?? first?.key ?? "key";
        limiters.push({ key: `{${tag}}:${limiters.length + 1}`, shadow: false, kind: "FIXED", arguments: KINDS.FIXED.map(([, , first]) => first) });
        rebuild(`limiter${limiters.length}-kind`);
    });
    for (const name of ["pattern", "retry"]) on(name, "change", () => { state[name] = element(name).value; update(); });
    on("log", "input", () => { state.log = element("log").value; update(); });
    on("file", "change", async () => { state.log = await element("file").files[0]?.text() ?? ""; update(); });
    on("call", "input", () => { state.call = Number(element("call").value); update(); });
    const go = (call) => { if (call) { state.call = call; update(); } };
    on("previous", "click", () => go(picture?.call?.previous_refused));
    on("next", "click", () => go(picture?.call?.next_refused));
    on("chart", "click", (event) => {
        if (!picture) return;
        const box = element("chart").getBoundingClientRect();
        const bin = Math.floor((event.clientX - box.left - 8) / (box.width - 16) * picture.bins.length);
        const before = picture.bins.slice(0, Math.max(0, bin)).reduce((sum, [a, b, c]) => sum + a + b + c, 0);
        go(Math.min(picture.calls, before + 1));
    });
    const copy = async (text, what) => {
        try {
            await navigator.clipboard.writeText(text);
            element("copied").textContent = `${what} copied`;
        } catch {
            element("copied").textContent = `This browser does not let the page copy. ${what}: ${text}`;
        }
    };
    on("share", "click", () => { keepAddress(); copy(location.href, "address"); });
    document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", () => copy(element(button.dataset.copy).textContent, button.dataset.copy)));
    addEventListener("hashchange", () => { readAddress(); update(); });
    addEventListener("resize", draw);
}

readAddress();
buildTraffic();
listen();
load().then(update, (error) => show({ error: `The program cannot be loaded: ${error}` }));
