// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/visible"
)

// Notice says where the platform announces the preemption of this machine: a spot
// instance is taken back, the time limit of a batch system ends, maintenance begins. The
// zero value means that nobody looks for a notice.
//
// A notice ends the job (on several machines: this machine's part of it) as if this process
// had got SIGTERM. The ranks get SIGTERM, have the grace period to save and end, and are not
// started again. Ranks of Spawn find the notice in the cause of their context, a
// [*StopError]. Other ranks find it in the file that COHORT_NOTICE names. A notice that is
// there before the job starts is a [*ConfigError].
type Notice struct {
	// File is the path of a file that appears when the machine is about to go. Its first
	// line is the text of the notice. Its directory has to exist.
	File string
	// URL is the address of a metadata service, which is asked by GET. These answers mean
	// that there is no notice: 404, an empty body, FALSE, NONE, MIGRATE_ON_HOST_MAINTENANCE
	// (Google), and a JSON object whose Events have none of the types Preempt and Terminate
	// (Azure). Every other good answer is a notice. After a 401, a token is fetched (AWS).
	URL string
	// Interval is the time between two looks at File and URL; default 1 s.
	Interval time.Duration
}

const defaultNoticeInterval = time.Second

// maxNotice is how many bytes are read of a notice, and of the agent's file.
const maxNotice = 64 << 10

func (n Notice) isSet() bool { return n.File != "" || n.URL != "" }

// noticeFile is the content of the file that the agent writes for its ranks, as JSON.
type noticeFile struct {
	Notice   string    `json:"notice"`
	Deadline time.Time `json:"deadline"`
}

// readNotice reads that file. The zero value means that there is no notice.
func readNotice(path string) (n noticeFile) {
	if path == "" {
		return n
	}
	f, err := os.Open(path)
	if err != nil {
		return n
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxNotice))
	if err != nil || json.Unmarshal(b, &n) != nil {
		return noticeFile{}
	}
	n.Notice = noticeText([]byte(n.Notice))
	return n
}

// noticeWatch looks for a notice while a host is open.
type noticeWatch struct {
	Notice
	url   *noticeURL // nil: none
	path  string     // of the file for the ranks; empty: there is none
	grace time.Duration
	out   io.Writer

	text   atomic.Pointer[string] // of the notice, once there is one
	cancel context.CancelFunc
	ended  chan struct{}
}

// openNotice checks where to look, and that there is no notice yet.
func openNotice(ctx context.Context, cfg *Config) (*noticeWatch, error) {
	w := &noticeWatch{Notice: cfg.Notice, grace: cfg.Grace, out: cfg.Stderr}
	if w.Interval <= 0 {
		w.Interval = defaultNoticeInterval
	}
	if w.File != "" {
		path, err := filepath.Abs(w.File)
		if err != nil {
			return nil, badConfig("Notice", "notice file %s: %w", w.File, err)
		}
		w.File = path
		if st, err := os.Stat(filepath.Dir(path)); err != nil {
			return nil, badConfig("Notice", "notice file: its directory %s cannot be used: %w", filepath.Dir(path), err)
		} else if !st.IsDir() {
			return nil, badConfig("Notice", "notice file: %s is not a directory", filepath.Dir(path))
		}
	}
	if w.URL != "" {
		var err error
		if w.url, err = parseNoticeURL(w.URL); err != nil {
			return nil, &ConfigError{Field: "Notice", Err: err}
		}
	}
	text, err := w.look(ctx)
	switch {
	case err != nil:
		return nil, &ConfigError{Field: "Notice", Err: err}
	case text != "":
		return nil, badConfig("Notice", "this machine is about to go, so nothing is started: %s (if the notice is old, remove it, or start without it)", text)
	}
	return w, nil
}

// start begins to look. A notice becomes a SIGTERM on ch.
func (w *noticeWatch) start(ch chan<- os.Signal) {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel, w.ended = cancel, make(chan struct{})
	go func() {
		defer close(w.ended)
		text := w.await(ctx)
		if text == "" {
			return
		}
		w.record(text)
		w.text.Store(&text)
		fmt.Fprintf(w.out, "cohort: this machine is about to go: %s; its ranks get SIGTERM and have %v to save\n", visible.Text(text), w.grace)
		select {
		case ch <- syscall.SIGTERM:
		case <-ctx.Done():
		}
	}()
}

// close stops looking. A nil watch does nothing.
func (w *noticeWatch) close() {
	if w == nil {
		return
	}
	if w.cancel != nil {
		w.cancel()
		<-w.ended
	}
	w.url.close()
}

// await looks until there is a notice, and returns its text. A URL that does not answer
// must not end the job: a line says when that begins and when it is over.
func (w *noticeWatch) await(ctx context.Context) string {
	tick := time.NewTicker(w.Interval)
	defer tick.Stop()
	troubled := false
	for {
		select {
		case <-ctx.Done():
			return ""
		case <-tick.C:
		}
		text, err := w.look(ctx)
		if text != "" {
			return text
		}
		if ctx.Err() != nil {
			return ""
		}
		if troubled != (err != nil) {
			troubled = err != nil
			if troubled {
				fmt.Fprintf(w.out, "cohort: %s; the job goes on, and the URL is asked again\n", visible.Text(err.Error()))
			} else {
				fmt.Fprintf(w.out, "cohort: the notice URL answers again\n")
			}
		}
	}
}

// look looks once. If there is a notice, errors do not count.
func (w *noticeWatch) look(ctx context.Context) (text string, err error) {
	if w.File != "" {
		text, err = lookAtFile(w.File)
	}
	if text == "" && w.url != nil {
		var failed error
		if text, failed = w.url.ask(ctx); failed != nil {
			err = errors.Join(err, failed)
		}
	}
	return text, err
}

// lookAtFile returns the text of the notice if the file is there.
func lookAtFile(path string) (text string, err error) {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("notice file: %w", err)
	}
	text = "notice file " + path
	if !st.Mode().IsRegular() { // reading a pipe would wait for who writes it
		return text, nil
	}
	f, err := os.Open(path)
	if err != nil { // that it is there is notice enough
		return text, nil
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, maxNotice))
	if said := noticeText(b); said != "" {
		text += ": " + said
	}
	return text, nil
}

// record writes the file for the ranks, in one step.
func (w *noticeWatch) record(text string) {
	if w.path == "" {
		return
	}
	b, err := json.Marshal(noticeFile{Notice: text, Deadline: time.Now().Add(w.grace)})
	if err == nil {
		if err = os.WriteFile(w.path+".new", b, 0o644); err == nil {
			err = os.Rename(w.path+".new", w.path)
		}
	}
	if err != nil { // the signal comes all the same
		fmt.Fprintf(w.out, "cohort: the ranks cannot be told of the notice: %v\n", err)
	}
}

// said returns the text of the notice; empty if there is none yet.
func (w *noticeWatch) said() string {
	if w == nil {
		return ""
	}
	if text := w.text.Load(); text != nil {
		return *text
	}
	return ""
}

// Notice returns the text of the notice that this host has had ([Config].Notice); empty
// if it has had none.
func (h *Host) Notice() string { return h.notice.said() }

// watchNotice begins to look for a notice, if the configuration asks for it.
func (h *Host) watchNotice() {
	if h.notice == nil {
		return
	}
	if h.logs.dir != "" {
		h.notice.path = filepath.Join(h.logs.dir, "notice.json")
	}
	h.notice.start(h.sig.ch)
}

// maxNoticeText bounds a notice in a message, in runes.
const maxNoticeText = 200

// noticeText returns the first line of what was read, without control characters.
func noticeText(b []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	var out []rune
	for _, c := range line {
		if c < ' ' || c >= 0x7f && c < 0xa0 {
			c = ' '
		}
		if out = append(out, c); len(out) == maxNoticeText {
			break
		}
	}
	return strings.TrimSpace(string(out))
}
