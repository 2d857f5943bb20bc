// The curves: one uPlot for each quantity, all with one axis, one zoom and one position.
import { AXES, CURVES, along, axisWords, has, momentWords, page, placeOf, tickWords, whole, worded } from "./data.js";
import { colourOf, css } from "./colours.js";
import { drawMarks, drawSuperseded, smoothed } from "./drawn.js";
import { pinchable } from "./touch.js";

const HEIGHT = 220;
// A run has one colour; its evaluations differ by dashes and dots.
const DASHES = [[4, 3], [1, 3], [9, 4], [9, 3, 2, 3]];

const yRange = (low, high, isLog) => {
    if (low === null || low === undefined) return [isLog ? 1 : 0, isLog ? 10 : 1];
    const pad = Math.max(1.02, (high / low) ** 0.05);
    return isLog ? [low / pad, high * pad] : uPlot.rangeNum(low, high, 0.1, true);
};

// Ticks of a logarithmic axis: 1, 2 and 5 of each power of ten, or even steps within less than one.
const logTicks = (low, high) => {
    const decades = Math.log10(high / low);
    const power = 10 ** Math.floor(Math.log10(decades < 0.7 ? (high - low) / 3 : low));
    if (decades < 0.7) {
        const step = power * [1, 2, 5].findLast((one) => one * power <= (high - low) / 3);
        return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, place) => (Math.ceil(low / step) + place) * step);
    }
    const each = decades > 4 ? [1] : decades > 2 ? [1, 5] : [1, 2, 5];
    const all = Array.from({ length: Math.ceil(decades) + 2 }, (_, place) => each.map((one) => one * power * 10 ** place)).flat();
    return all.filter((one) => low <= one && one <= high);
};

const drawable = (column, isLog) =>
    Array.from(column, (value) => (Number.isFinite(value) && (!isLog || value > 0) ? value : null));

export const curvesOf = (runs) => CURVES.filter(({ key }) => runs.some((run) => has(run.columns[key])));

export class Curves {
    constructor(root, state) {
        this.root = root;
        this.state = state;
        this.plots = [];
        this.heading = Object.assign(document.createElement("h2"), { textContent: "Curves", className: "unseen" });
        this.isFollowing = false;
        this.frame = null;
        new ResizeObserver(() => this.fit()).observe(root);
    }

    // The runs that are shown and known along the axis, and from where to where they go.
    choose() {
        const { axis, hidden } = this.state;
        this.runs = page.runs.filter((run) => !hidden.has(run.number) && has(run.columns[axis]));
        this.bounds = this.fromTo();
    }

    fromTo() {
        const { axis } = this.state;
        let [from, to] = [Infinity, -Infinity];
        for (const run of this.runs) {
            const column = run.columns[axis].filter((value) => !Number.isNaN(value));
            [from, to] = [Math.min(from, column[0]), Math.max(to, column[column.length - 1])];
        }
        return from < to ? [from, to] : [from - 1, from + 1];
    }

    draw() {
        for (const { plot } of this.plots) plot.destroy();
        this.root.replaceChildren(this.heading);
        this.choose();
        this.plots = curvesOf(this.runs).map((curve) => this.one(curve));
        this.read(this.state.position);
    }

    one(curve) {
        const figure = document.createElement("figure");
        const caption = document.createElement("figcaption");
        const title = document.createElement("h3");
        const source = Object.assign(document.createElement("p"), { className: "note", textContent: this.sourceOf(curve) });
        const reading = document.createElement("p");
        const canvas = document.createElement("div");
        const link = Object.assign(document.createElement("a"), { href: `#${curve.key}`, textContent: curve.title });
        link.addEventListener("click", (event) => {
            event.preventDefault();
            this.state.chart = curve.key;
            this.state.changed();
            figure.scrollIntoView({ behavior: "smooth" });
        });
        title.append(link);
        const log = Object.assign(document.createElement("button"), { type: "button", textContent: "log", className: "log" });
        log.title = `Logarithmic axis: ${curve.title}`;
        log.setAttribute("aria-pressed", this.state.logs.has(curve.key));
        log.addEventListener("click", () => {
            if (!this.state.logs.delete(curve.key)) this.state.logs.add(curve.key);
            this.state.redraw();
            document.querySelector(`#${curve.key} .log`).focus();
        });
        reading.className = "reading";
        canvas.className = "canvas";
        canvas.setAttribute("role", "img");
        caption.append(title, reading, log);
        figure.id = curve.key;
        figure.append(caption, canvas, ...(source.textContent ? [source] : []));
        figure.dataset.curve = curve.key;
        this.root.append(figure);
        const { series, tables, modes, readers } = this.series(curve);
        const plot = new uPlot(this.options(curve, series, canvas), uPlot.join(tables, modes), canvas);
        canvas.setAttribute("aria-label", this.inWords(curve));
        return { curve, plot, reading, readers };
    }

    series(curve) {
        const { axis } = this.state;
        const isLog = this.state.logs.has(curve.key);
        const smoothing = curve.isSet ? 0 : this.state.smoothing;
        const [series, tables, modes, readers] = [[{}], [], [], []];
        const add = (all, values, style) => {
            // What is not known along the axis, as the time before the first line that tells one, is not drawn.
            const known = all.every((x) => !Number.isNaN(x)) ? null : all.map((x) => !Number.isNaN(x));
            const [xs, ys] = known ? [all, values].map((list) => list.filter((_, place) => known[place])) : [all, values];
            tables.push([xs, ys]);
            modes.push([0, 1]);
            series.push(style);
        };
        for (const run of this.runs) {
            const column = run.columns[curve.key];
            if (!has(column)) continue;
            const stroke = colourOf(run.number);
            const xs = Array.from(run.columns[axis]);
            const soft = smoothed(run.columns.iteration, column, smoothing);
            if (smoothing > 0) {
                add(xs, drawable(column, isLog), { stroke: `${stroke}50`, width: 1, points: { show: false }, spanGaps: false });
            }
            add(xs, drawable(soft, isLog), { stroke, width: 1.5, points: { show: false }, spanGaps: true });
            readers.push({ run, column, soft });
            if (curve.key !== "loss") continue;
            Object.entries(run.evaluations).forEach(([group, [iterations, losses]], number) => {
                const points = { show: true, size: 6 + 2 * (number % 3), fill: number % 2 ? css("--paper") : stroke, stroke };
                const line = { stroke, width: 1, dash: DASHES[number % DASHES.length], points, spanGaps: true };
                add(iterations.map((one) => along(run, axis, one)), drawable(losses, isLog), line);
                readers.push({ run, group, iterations, losses });
            });
        }
        return { series, tables, modes, readers };
    }

    options(curve, series, canvas) {
        const { axis, range } = this.state;
        const isLog = this.state.logs.has(curve.key);
        const clock = this.runs[0]?.clock;
        const isTime = axis === "at_s" && clock !== "trained";
        const ink = { stroke: css("--ink"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid") } };
        const font = "12px system-ui, sans-serif";
        return {
            width: canvas.clientWidth || 300,
            height: HEIGHT,
            series,
            legend: { show: false },
            scales: {
                x: { time: isTime, range: (_, low, high) => range ?? (low < high ? [low, high] : [low - 1, high + 1]) },
                y: { distr: isLog ? 3 : 1, range: (_, low, high) => yRange(low, high, isLog) },
            },
            tzDate: (at) => (clock === "log" ? uPlot.tzDate(new Date(at * 1e3), "Etc/UTC") : new Date(at * 1e3)),
            axes: [
                {
                    ...ink,
                    font,
                    size: 34,
                    space: 70,
                    values: (_, ticks, __, ___, width) =>
                        ticks.map((one) => (isTime ? tickWords(one, width, clock) : worded(axis === "at_s" ? one / 3600 : one))),
                },
                {
                    ...ink,
                    font,
                    size: 64,
                    values: (_, ticks) => ticks.map((one) => (one === null ? "" : worded(one, 3))),
                    ...(isLog ? { splits: (_, __, low, high) => logTicks(low, high), filter: (_, ticks) => ticks } : {}),
                },
            ],
            cursor: { drag: { x: true, y: false }, y: false, points: { size: 7 } },
            hooks: {
                drawAxes: [(plot) => drawSuperseded(plot, curve, this.runs, this.state)],
                draw: [(plot) => drawMarks(plot, this.runs, this.state)],
                setCursor: [(plot) => this.follow(plot)],
                setSelect: [
                    (plot) => {
                        const { left, width } = plot.select;
                        if (width > 3) this.zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
                    },
                ],
                ready: [
                    (plot) => {
                        plot.over.addEventListener("dblclick", () => this.zoom(null));
                        pinchable(plot, (low, high) => this.within(low, high));
                    },
                ],
            },
        };
    }

    // The pointer over one curve moves the position of all.
    follow(plot) {
        if (this.isFollowing || !(plot.cursor.left >= 0)) return;
        this.state.position = plot.posToVal(plot.cursor.left, "x");
        // However often the pointer moves, once a frame.
        this.frame ??= requestAnimationFrame(() => {
            this.frame = null;
            this.read(this.state.position, plot);
            this.state.moved?.();
        });
    }

    read(position, from = null) {
        this.isFollowing = true;
        for (const { curve, plot, reading, readers } of this.plots) {
            if (plot !== from) {
                const left = position === null ? -10 : plot.valToPos(position, "x");
                plot.setCursor({ left, top: plot.over.clientHeight / 2 });
            }
            const words = this.told(curve, readers, position);
            reading.replaceChildren(...words.flatMap((one, place) => (place ? [" · ", one] : [one])));
        }
        this.isFollowing = false;
    }

    told(curve, readers, position) {
        const { axis } = this.state;
        const smoothing = curve.isSet ? 0 : this.state.smoothing;
        const isOne = this.runs.length === 1;
        return readers.map(({ run, group, column, soft, iterations, losses }) => {
            const name = isOne ? "" : `${run.name} `;
            const last = run.columns[axis].length - 1;
            const place = position === null ? last : placeOf(run.columns[axis], position);
            const words = document.createElement("span");
            if (!isOne) words.className = `run-${run.number % 6}`;
            if (group !== undefined) {
                const at = placeOf(iterations, run.columns.iteration[place]);
                words.textContent = `${name}${group} ${worded(losses[at], curve.digits)}`;
                return words;
            }
            const mean = smoothing > 0 ? ` (mean ${worded(soft[place], curve.digits)})` : "";
            words.textContent = `${name}${worded(column[place], curve.digits)}${curve.unit ? ` ${curve.unit}` : ""}${mean}`;
            return words;
        });
    }

    // What a curve shows, for who cannot see it.
    inWords(curve) {
        return this.runs
            .filter((run) => has(run.columns[curve.key]))
            .map((run) => {
                const column = run.columns[curve.key].filter((value) => !Number.isNaN(value));
                const [low, high] = column.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);
                const ends = `from ${worded(column[0], curve.digits)} to ${worded(column[column.length - 1], curve.digits)}`;
                const again = this.state.isAgain && run.superseded.some(({ columns }) => has(columns[curve.key])) ? "; what was trained again is faint beneath" : "";
                return `${curve.title} of ${run.name}: ${ends}, between ${worded(low, curve.digits)} and ${worded(high, curve.digits)}${again}`;
            })
            .join("; ");
    }

    // What a curve was reckoned from that no log tells.
    sourceOf(curve) {
        const runs = this.runs.filter((run) => run.sources[curve.key]);
        return runs.map((run) => `${this.runs.length > 1 ? `${run.name}: ` : ""}${run.sources[curve.key]}`).join("; ");
    }

    // What stands at the position, for the control that moves it.
    spoken() {
        const { axis, position } = this.state;
        const run = this.runs[0];
        if (run === undefined || position === null) return "";
        const place = placeOf(run.columns[axis], position);
        const at = axisWords(run.columns[axis][place], axis, run.clock);
        const also = axis === "iteration" ? "" : `, iteration ${whole(run.columns.iteration[place])}`;
        const time = axis === "at_s" || run.clock === "" ? "" : `, ${momentWords(run.columns.at_s[place], run.clock)}`;
        return `${at}${also}${time}`;
    }

    // Shows from one value of the axis to another; null: all of it.
    zoom(from, to) {
        this.state.range = from === null ? null : [Math.min(from, to), Math.max(from, to)];
        const [low, high] = this.state.range ?? this.bounds;
        this.isFollowing = true;
        for (const { plot } of this.plots) {
            plot.batch(() => {
                plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
                plot.setScale("x", { min: low, max: high });
            });
        }
        this.isFollowing = false;
        this.state.zoomed?.();
    }

    // The same, no further than the runs go.
    within(low, high) {
        const [first, last] = this.bounds;
        if (low <= first && high >= last) this.zoom(null);
        else this.zoom(Math.max(first, low), Math.min(last, high));
    }

    fit() {
        for (const { plot } of this.plots) {
            const width = plot.root.parentElement.clientWidth;
            if (width > 0 && width !== plot.width) plot.setSize({ width, height: HEIGHT });
        }
    }
}

export const axisName = (axis) => AXES[axis];
