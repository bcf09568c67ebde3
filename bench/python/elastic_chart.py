"""The chart of elastic.py: steps per second over time, a panel for each way."""

LEFT, WIDTH, PANEL, TOP = 218, 640, 74, 56  # of the plots, in units of the drawing

STYLE = """.mc{--bg:#fff;--fg:#1d2433;--dim:#5b6477;--line:#3f7fd6;--again:#d99a2b;--bad:#d8343f}
@media (prefers-color-scheme:dark){.mc{--bg:#14171f;--fg:#e7eaf1;--dim:#98a1b3;--line:#5b9bf0;--again:#e0ac4a;--bad:#ff5c66}}
.mc text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--fg)}
.mc .h{font-weight:600}.mc .d{fill:var(--dim);font-size:12px}.mc .e{text-anchor:end}.mc .m{text-anchor:middle}
.mc .n{fill:var(--line)}.mc .a{fill:var(--again)}.mc .k{stroke:var(--bad);stroke-width:1.2;stroke-dasharray:3 2}.mc .x{stroke:var(--dim);stroke-width:1}"""


def bars(low, high, scale, base):
    """Returns a path that is filled between two series of heights."""
    step = WIDTH / len(low)
    path = f"M{LEFT} {base - low[0] * scale:.0f}"
    for series in (high, low):
        order = range(len(series)) if series is high else reversed(range(len(series)))
        for i in order:
            ends = (i, i + 1) if series is high else (i + 1, i)
            path += f"V{base - series[i] * scale:.0f}H{LEFT + ends[1] * step:.0f}"
    return path + "z"


def chart(results, seconds, width, names):
    """Returns the drawing. width is that of a point, in seconds."""
    highest = max(n + r for way in results for n, r in zip(way["new"], way["redone"])) / width
    unit = 10 if highest > 10 else 5
    most = -(-highest // unit) * unit
    height = TOP + PANEL * len(results) + 34
    label = "Steps per second over time while workers are killed, for each way to go on; processes and medians are in the table of this page."
    out = [
        f'<svg class="mc" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 {height}" width="880" height="{height}" role="img" aria-label="{label}">',
        f"<style>\n{STYLE}\n</style>",
        '<rect width="100%" height="100%" fill="var(--bg)"/>',
        '<text class="h" x="20" y="26">Steps per second while workers are killed</text>',
        f'<rect class="n" x="{LEFT + 160}" y="15" width="12" height="12"/><text class="d" x="{LEFT + 178}" y="26">steps</text>',
        f'<rect class="a" x="{LEFT + 230}" y="15" width="12" height="12"/><text class="d" x="{LEFT + 248}" y="26">steps taken again, from the checkpoint</text>',
        f'<path class="k" d="M{LEFT + 490} 13V29"/><text class="d" x="{LEFT + 498}" y="26">kill -9 of the rank</text>',
    ]
    for i, r in enumerate(results):
        base, scale = TOP + PANEL * (i + 1) - 14, (PANEL - 24) / most
        again = [v / width for v in r["redone"]]
        total = [a + v / width for a, v in zip(again, r["new"])]
        out.append(f'<text class="h" x="20" y="{base - 22}">{names[r["way"]]}</text>')
        out.append(f'<text class="d" x="20" y="{base - 5}">{r["steps"]} steps</text>')
        out.append(f'<text class="d e" x="{LEFT - 6}" y="{base + 3}">0</text><text class="d e" x="{LEFT - 6}" y="{base - most * scale + 8:.0f}">{most:.0f}/s</text>')
        out.append(f'<path class="n" d="{bars(again, total, scale, base)}"/>')
        if any(again):
            out.append(f'<path class="a" d="{bars([0] * len(again), again, scale, base)}"/>')
        for at, rank in r["kills"]:
            x = LEFT + at / seconds * WIDTH
            out.append(f'<path class="k" d="M{x:.0f} {base - most * scale - 4:.0f}V{base}"/><text class="d" x="{x + 3:.0f}" y="{base - most * scale + 3:.0f}">{rank}</text>')
        out.append(f'<path class="x" d="M{LEFT} {base}H{LEFT + WIDTH}"/>')
    for t in range(0, int(seconds) + 1, 10):
        out.append(f'<text class="d m" x="{LEFT + t / seconds * WIDTH:.0f}" y="{height - 22}">{t} s</text>')
    return "\n".join([*out, "</svg>", ""])
