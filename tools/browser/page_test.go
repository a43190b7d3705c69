// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/monitor/dashboard"
)

// pictures is where the tests leave pictures of the page, to be looked at.
var pictures = flag.String("pictures", "", "the directory in which the tests leave pictures of the page")

// open starts Chromium, or skips the test where there is none.
func open(t *testing.T) context.Context {
	t.Helper()
	exe, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("there is no chromium on the PATH (Debian: chromium)")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(exe), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 5*time.Minute)
	t.Cleanup(cancel)
	do(t, ctx) // starts it
	return ctx
}

func do(t *testing.T, ctx context.Context, actions ...chromedp.Action) {
	t.Helper()
	if err := chromedp.Run(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// value evaluates an expression in the page.
func value[T any](t *testing.T, ctx context.Context, script string) (v T) {
	t.Helper()
	do(t, ctx, chromedp.Evaluate(script, &v))
	return v
}

// until waits until an expression is true in the page.
func until(t *testing.T, ctx context.Context, script string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !value[bool](t, ctx, script); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came: %s", script)
		}
	}
}

func picture(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	if *pictures == "" {
		return
	}
	var png []byte
	do(t, ctx, chromedp.CaptureScreenshot(&png))
	if err := os.WriteFile(filepath.Join(*pictures, name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}

func scheme(dark bool) chromedp.Action {
	name := "light"
	if dark {
		name = "dark"
	}
	return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}})
}

// contrast is a function that lists the texts on the page whose contrast is below AA: 4.5, or 3 for
// large ones.
const contrast = `(() => {
	const rgb = (c) => { const m = c.match(/[\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
	const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
	const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] > 0) return c; } return [255, 255, 255, 1]; };
	const bad = [];
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n = walk.nextNode(); n; n = walk.nextNode()) {
		const e = n.parentElement;
		if (!n.textContent.trim() || !e.offsetParent || /^(SCRIPT|STYLE|NOSCRIPT|OPTION)$/.test(e.tagName)) continue;
		const s = getComputedStyle(e), a = light(rgb(s.color)), b = light(behind(e));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), large = parseFloat(s.fontSize) >= 24 || parseFloat(s.fontSize) >= 18.66 && s.fontWeight >= 700;
		if (ratio < (large ? 3 : 4.5)) bad.push(n.textContent.trim().slice(0, 40) + " " + ratio.toFixed(2));
	}
	return bad;
})()`

// TestPage: the page of a live job of 2, 64 and 512 ranks paints within a second and takes updates within
// 100 ms; its first view needs no scrolling; a person finds the slow rank and why, the overfitting
// and the cost of the restart; the keyboard reaches everything; texts are readable in both themes,
// and on a phone.
func TestPage(t *testing.T) {
	ctx := open(t)
	for _, ranks := range []int{2, 64, 512} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "lm")
			if err := os.Mkdir(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			p := record(t, dir, ranks)
			defer p.w.Close(time.Minute)
			s, err := dashboard.Listen(dashboard.Options{Addr: "127.0.0.1:0", Title: "cohort train lm: out/lm", Runs: []string{dir}, Job: p.job})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			do(t, ctx, chromedp.EmulateViewport(1280, 720), scheme(false), chromedp.Navigate(s.URL()), chromedp.WaitVisible("#verdicts .verdict"))
			paint := "(performance.getEntriesByName('first-contentful-paint')[0] || {startTime: -1}).startTime"
			until(t, ctx, paint+" >= 0")
			took := time.Duration(value[float64](t, ctx, paint) * float64(time.Millisecond))
			t.Logf("first paint after %v", took)
			if most := loaded.Allow(time.Second); took > most {
				t.Errorf("the first paint came after %v, want at most %v", took, most)
			}
			answers(t, ctx, p)
			if h := value[int](t, ctx, "document.scrollingElement.scrollHeight"); h > 720 {
				t.Errorf("the first view is %d pixels high, want at most 720", h)
			}
			updates(t, ctx, p)
			keyboard(t, ctx, ranks)
			views(t, ctx, ranks)
		})
	}
}

// answers checks what the first view says.
func answers(t *testing.T, ctx context.Context, p *recorded) {
	t.Helper()
	text := value[string](t, ctx, "document.getElementById('overview').innerText")
	for _, want := range []string{
		fmt.Sprintf("rank %d\nthe others wait", p.slow), " of its time waiting for data, ", // who is slow, and why
		"yes, since step ", "take the best checkpoint", // overfitting
		"the last one ", " of steps done again, ", " stopped, ", // the restart
	} {
		if !strings.Contains(strings.ReplaceAll(text, "\n\n", "\n"), want) {
			t.Errorf("the first view does not say %q:\n%s", want, text)
		}
	}
}

// updates checks that a further step is shown, and how long the page takes for that.
func updates(t *testing.T, ctx context.Context, p *recorded) {
	t.Helper()
	for range 8 {
		p.do()
	}
	until(t, ctx, fmt.Sprintf("document.getElementById('state').innerText.includes('step %d of')", p.step))
	took := time.Duration(value[float64](t, ctx, "Number(document.documentElement.dataset.updateMs)") * float64(time.Millisecond))
	t.Logf("an update took %v", took)
	if most := loaded.Allow(100 * time.Millisecond); took > most {
		t.Errorf("an update took %v, want at most %v", took, most)
	}
}

// keyboard goes through the page by keys alone.
func keyboard(t *testing.T, ctx context.Context, ranks int) {
	t.Helper()
	do(t, ctx, chromedp.Evaluate("document.activeElement.blur()", nil))
	reached := func() string {
		return value[string](t, ctx, "(document.activeElement.getAttribute('role') || document.activeElement.tagName) + ' ' + (document.activeElement.textContent || document.activeElement.getAttribute('aria-label') || '').slice(0, 40)")
	}
	var all []string
	for range 6 {
		do(t, ctx, chromedp.KeyEvent(kb.Tab))
		all = append(all, reached())
	}
	for _, want := range []string{"tab Overview", fmt.Sprintf("img %d ranks", ranks), "OL "} {
		if !strings.Contains(strings.Join(all, "\n"), want) {
			t.Errorf("Tab reaches %q, and not %q", all, want)
		}
	}
	for i, want := range []string{"Overview", "Curves", "Logged", "Ranks", "Log", "Events", "Run"} {
		do(t, ctx, chromedp.KeyEvent(fmt.Sprint(i+1)))
		if got := reached(); got != "tab "+want {
			t.Errorf("the key %d opens %q, want %s", i+1, got, want)
		}
	}
	do(t, ctx, chromedp.KeyEvent("3"), chromedp.KeyEvent(kb.ArrowRight))
	if got := reached(); got != "tab Ranks" {
		t.Errorf("the right arrow goes to %q, want Ranks", got)
	}
	do(t, ctx, chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.ArrowRight))
	if told := value[string](t, ctx, "document.querySelector('#ranks .told').textContent"); !strings.HasPrefix(told, "rank 1: ") {
		t.Errorf("the right arrow in the picture of the ranks says %q", told)
	}
	do(t, ctx, chromedp.KeyEvent("5"), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent("NFS"))
	until(t, ctx, "[...document.querySelectorAll('#log .lines mark')].map((m) => m.textContent).join() === 'nfs' && document.querySelector('#log .lines').textContent.includes('^[[1mnfs^[[0m: 240 ms')")
	do(t, ctx, chromedp.Evaluate("document.querySelector('#log input[type=search]').value = ''", nil))
}

// views looks at each view in both themes, on a screen and on a phone.
func views(t *testing.T, ctx context.Context, ranks int) {
	t.Helper()
	for _, dark := range []bool{false, true} {
		for _, width := range []int64{1280, 375} {
			do(t, ctx, chromedp.EmulateViewport(width, 720), scheme(dark))
			for _, view := range []string{"overview", "curves", "logged", "ranks", "log", "events", "runs"} {
				do(t, ctx, chromedp.Evaluate("document.getElementById('tab-"+view+"').click(); scrollTo(0, 0)", nil))
				until(t, ctx, "!document.getElementById('"+view+"').hidden")
				what := fmt.Sprintf("%s-%d-%d-%s", view, ranks, width, map[bool]string{false: "light", true: "dark"}[dark])
				if bad := value[[]string](t, ctx, contrast); len(bad) > 0 {
					t.Errorf("%s: hard to read: %q", what, bad)
				}
				if w := value[int64](t, ctx, "document.scrollingElement.scrollWidth"); w > width {
					t.Errorf("%s: the page is %d pixels wide", what, w)
				}
				if *pictures != "" {
					do(t, ctx, chromedp.Sleep(200*time.Millisecond)) // it is drawn again after a change of size
				}
				picture(t, ctx, what)
			}
		}
	}
}
