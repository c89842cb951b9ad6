"""CSS of a page: light and dark, from a phone to a wide screen, without external files."""

STYLE = """
:root { color-scheme: light dark; --ink: #1a2230; --soft: #5a6778; --line: #dfe4ea; --back: #f4f6f9;
  --card: #ffffff; --tint: #f4f6f9; --mark: #e8f1fb; --accent: #0b62a8; --good: #11734b; --bad: #b3382c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ee; --soft: #9aa7b6; --line: #303a47; --back: #11161d; --card: #181f29;
    --tint: #1f2833; --mark: #1b3048; --accent: #6db3f2; --good: #4fc08d; --bad: #f0857a; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
header, main { max-width: 1200px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 40px; padding-bottom: 8px; }
main { padding-bottom: 64px; }
h1 { font-size: clamp(24px, 4vw, 34px); line-height: 1.15; letter-spacing: -0.015em; margin: 0 0 10px;
  overflow-wrap: anywhere; text-wrap: balance; }
h2 { font-size: 20px; line-height: 1.25; letter-spacing: -0.01em; margin: 0 0 14px; overflow-wrap: anywhere; }
p { margin: 0 0 14px; max-width: 76ch; overflow-wrap: anywhere; }
a { color: var(--accent); }
.lead { color: var(--soft); font-size: 17px; margin-bottom: 18px; }
nav { display: flex; flex-wrap: wrap; gap: 8px; margin: 0 0 20px; }
nav a { font-size: 14px; text-decoration: none; padding: 4px 12px; border: 1px solid var(--line);
  border-radius: 999px; background: var(--card); overflow-wrap: anywhere; }
nav a:hover, nav a:focus-visible { border-color: var(--accent); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 24px 28px 14px; margin: 0 0 20px; scroll-margin-top: 12px; }
.verdict { border-left: 5px solid var(--soft); border-radius: 4px 8px 8px 4px; background: var(--tint);
  padding: 14px 18px; margin: 0 0 14px; max-width: 90ch; overflow-wrap: anywhere; }
.verdict strong { display: block; font-size: 18px; line-height: 1.35; margin-bottom: 4px; }
.verdict.good { border-color: var(--good); } .verdict.good strong { color: var(--good); }
.verdict.bad { border-color: var(--bad); } .verdict.bad strong { color: var(--bad); }
.scroll { overflow-x: auto; margin: 0 -10px 6px; }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: -2px; }
table { border-collapse: collapse; min-width: min(100%, 620px); font-size: 14.5px; line-height: 1.4;
  font-variant-numeric: tabular-nums; margin: 0 0 8px; }
caption { text-align: left; font-weight: 600; font-size: 15px; padding: 0 10px 8px; }
th, td { text-align: left; padding: 8px 10px; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th.number, td.number { text-align: right; }
td.number { white-space: nowrap; }
td:not(.number) { min-width: 7em; max-width: 34em; overflow-wrap: break-word; }
thead th { color: var(--soft); font-weight: 600; font-size: 13px; line-height: 1.3; vertical-align: bottom;
  border-bottom: 2px solid var(--line); }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--card); }
tbody tr:hover td { background: var(--tint); }
tr.strong td, tbody tr.strong:hover td { font-weight: 650; background: var(--mark); }
.interval { display: block; color: var(--soft); font-weight: 400; font-size: 12.5px; }
.note { color: var(--soft); font-size: 14px; line-height: 1.5; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)); gap: 20px;
  margin: 0 0 10px; }
figure { margin: 0 0 14px; min-width: 0; }
figure img, figure video { display: block; max-width: 100%; height: auto; border-radius: 8px; }
.grid figure { margin: 0; }
.grid img, .grid video { width: 100%; }
figure video { background: #000; }
figcaption { color: var(--soft); font-size: 13.5px; line-height: 1.4; margin-top: 6px;
  overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { figure img { background: #fff; filter: brightness(0.9); } }
@media (max-width: 640px) { body { font-size: 15px; }
  header, main { padding-left: 12px; padding-right: 12px; } header { padding-top: 24px; }
  section { padding: 18px 16px 8px; border-radius: 10px; }
  td:not(.number) { max-width: 60vw; } td:first-child { max-width: 40vw; min-width: 6em; } }
@media print { body { background: none; } section { border: 0; padding: 0; break-inside: avoid-page; }
  nav, video { display: none; } }
"""
