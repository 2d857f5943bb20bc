// Two fingers on a curve zoom the axis: what is under each of them stays under it. One finger is the page's to scroll by.

// Fingers closer than that, in pixels, zoom no further in.
const CLOSEST = 12;

// From where to where the axis goes so that `held`, the values taken hold of, are at the `lefts` of a frame of `width`.
const pinched = (held, lefts, width) => {
    const apart = Math.max(CLOSEST, lefts[1] - lefts[0]);
    const each = (held[1] - held[0]) / apart;
    const low = held[0] - lefts[0] * each;
    return [low, low + width * each];
};

export const pinchable = (plot, zoom) => {
    const { over } = plot;
    const fingers = new Map();
    let held = null;
    let frame = null;
    // Of the two fingers, left to right.
    const lefts = () => {
        const { left } = over.getBoundingClientRect();
        return [...fingers.values()].map((x) => x - left).sort((one, other) => one - other);
    };
    const down = (event) => {
        if (event.pointerType !== "touch") return;
        fingers.set(event.pointerId, event.clientX);
        held = fingers.size === 2 ? lefts().map((left) => plot.posToVal(left, "x")) : null;
    };
    const move = (event) => {
        if (!fingers.has(event.pointerId)) return;
        fingers.set(event.pointerId, event.clientX);
        // However often fingers move, once a frame.
        if (held === null || !(held[0] < held[1])) return;
        frame ??= requestAnimationFrame(() => {
            frame = null;
            if (held !== null) zoom(...pinched(held, lefts(), over.clientWidth));
        });
    };
    const up = (event) => {
        fingers.delete(event.pointerId);
        held = null;
    };
    over.addEventListener("pointerdown", down);
    over.addEventListener("pointermove", move);
    for (const name of ["pointerup", "pointercancel"]) over.addEventListener(name, up);
};
