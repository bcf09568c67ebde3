package timeline

import (
	"bytes"
	"fmt"
	"html/template"
	"io"
	"slices"
)

// pageRecords is the maximum number of verbs that a page lists.
const pageRecords = 15

// HTML writes a page with the picture, the time that the others waited for each rank, and the verbs
// with the longest waits. It is one file, without scripts.
func (t *Timeline) HTML(w io.Writer, o *PictureOptions) error {
	var picture bytes.Buffer
	if err := t.SVG(&picture, o); err != nil {
		return err
	}
	worst := slices.DeleteFunc(slices.Clone(t.Records), func(r *Record) bool { return r.Inner || r.Waited == 0 })
	slices.SortStableFunc(worst, func(a, b *Record) int { return int(min(max(b.Waited-a.Waited, -1), 1)) })
	title := "muster trace"
	if o != nil && o.Title != "" {
		title = o.Title
	}
	err := page.Execute(w, map[string]any{
		"Title": title, "Picture": template.HTML(picture.String()), "Summary": t.Summary(), "Worst": worst[:min(len(worst), pageRecords)], "T": t, //nolint:gosec // SVG escapes
	})
	if err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	return nil
}

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"short": short,
	"label": (*Row).label,
	"clock": (*Row).clockText,
	"last": func(r *Record) string {
		if of := r.Blamed(); of != nil {
			return of.label()
		}
		return "?"
	},
	"at": func(t *Timeline, r *Record) string { return short(r.End.Sub(t.Start)) },
}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>{{.Title}}</title>
<style>
:root{color-scheme:light dark;--bg:#fff;--fg:#1d2433;--dim:#6b7385;--rule:#e6e9ef}
@media (prefers-color-scheme:dark){:root{--bg:#14171f;--fg:#e7eaf1;--dim:#98a1b3;--rule:#262b37}}
body{margin:0;background:var(--bg);color:var(--fg);font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1240px;margin:0 auto;padding:12px 16px 48px}
.picture{overflow-x:auto}svg{max-width:100%;min-width:720px;height:auto;display:block}
h2{font-size:15px;margin:28px 0 8px}.tables{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));gap:0 40px}
.table{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px 5px 0;border-bottom:1px solid var(--rule);text-align:left;white-space:nowrap}
th{font-weight:500;color:var(--dim)}td.r,th.r{text-align:right}
</style>
<main>
<div class="picture">{{.Picture}}</div>
<div class="tables">
<section><h2>Who the others waited for</h2><div class="table"><table>
<tr><th>rank</th><th class="r">came last</th><th class="r">others waited</th><th class="r">waited itself</th><th>clock</th><th>process</th></tr>
{{range .Summary.Ranks}}<tr><td>{{label .Row}}</td><td class="r">{{.Last}}×</td><td class="r">{{short .Caused}}</td><td class="r">{{short .Waited}}</td><td>{{clock .Row}}</td><td>{{.Row.PID}} on {{.Row.Host}}{{if .Row.Truncated}}, no end{{end}}</td></tr>
{{end}}</table></div></section>
<section><h2>Waited for longest</h2><div class="table"><table>
<tr><th>verb</th><th class="r">at</th><th>last</th><th class="r">others waited</th></tr>
{{$t := .T}}{{range .Worst}}<tr><td>{{.}}</td><td class="r">{{at $t .}}</td><td>{{last .}}</td><td class="r">{{short .Waited}}</td></tr>
{{else}}<tr><td colspan="4">no rank waited</td></tr>
{{end}}</table></div></section>
</div>
</main>
`))
