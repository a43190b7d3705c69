// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// progressBar shows progress: on a terminal in one line that it overwrites,
// elsewhere with a line every few seconds.
type progressBar struct {
	w        io.Writer
	terminal bool
	began    time.Time
	last     time.Time
	open     bool
}

func newProgressBar(w io.Writer) *progressBar {
	f, ok := w.(*os.File)
	return &progressBar{w: w, terminal: ok && term.IsTerminal(int(f.Fd())), began: time.Now(), last: time.Now()}
}

func (p *progressBar) show(done, total int64) {
	every := 5 * time.Second
	if p.terminal {
		every = 0
	}
	now := time.Now()
	if now.Sub(p.last) < every || total == 0 {
		return
	}
	p.last = now
	elapsed := now.Sub(p.began)
	rate := float64(done) / max(elapsed.Seconds(), 1e-3)
	left := time.Duration(float64(total-done) / max(rate, 1) * float64(time.Second)).Round(time.Second)
	const width = 30
	full := int(width * done / total)
	line := fmt.Sprintf("%3d %% %7.1f of %.1f MB  %.1f MB/s  %s left", 100*done/total, float64(done)/1e6, float64(total)/1e6, rate/1e6, left)
	if !p.terminal {
		fmt.Fprintln(p.w, line)
		return
	}
	bar := "[" + string(bytes.Repeat([]byte{'='}, full)) + string(bytes.Repeat([]byte{' '}, width-full)) + "] "
	fmt.Fprint(p.w, "\r\x1b[K"+bar+line)
	p.open = true
}

// end keeps the last state on the screen and begins a new line.
func (p *progressBar) end() {
	if p.open {
		fmt.Fprintln(p.w)
		p.open = false
	}
}
