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

// Notice says where the platform announces that this machine is about to go: a
// spot instance that is taken back, a batch system's time limit, maintenance.
// The zero value looks nowhere.
//
// When there is a notice, the job (on several machines: this machine's part of
// it) ends as if this process had got SIGTERM: the ranks get it, have the grace
// period to save and end, and are not started again. Ranks that Spawn runs find
// the notice in the cause of their context, a [*StopError]; others in the file
// that COHORT_NOTICE names. A notice that is there before the job is a
// [*ConfigError]: nothing is to start on such a machine.
type Notice struct {
	// File is a path at which there is a file as soon as the machine is to go.
	// Its first line is the notice's text. Its directory has to exist.
	File string
	// URL is asked by GET, as a cloud's metadata service is. No notice is: 404,
	// an empty answer, FALSE, NONE, MIGRATE_ON_HOST_MAINTENANCE (Google), and a JSON
	// object whose Events have none of the type Preempt or Terminate (Azure). Every
	// other good answer is one. A 401 is answered with a token (AWS).
	URL string
	// Interval is the time between two looks; default 1 s.
	Interval time.Duration
}

const defaultNoticeInterval = time.Second

// maxNotice bounds what is read of a notice, and of what the agent writes of it.
const maxNotice = 64 << 10

func (n Notice) isSet() bool { return n.File != "" || n.URL != "" }

// noticeFile is what the agent writes for its ranks, as JSON.
type noticeFile struct {
	Notice   string    `json:"notice"`
	Deadline time.Time `json:"deadline"`
}

// readNotice reads the file of a notice; the zero value means that there is none.
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

// noticeWatch looks for a notice for as long as a host is open.
type noticeWatch struct {
	Notice
	url   *noticeURL // nil: none
	path  string     // the file for the ranks; empty: none
	grace time.Duration
	out   io.Writer

	text   atomic.Pointer[string] // of the notice, once there is one
	cancel context.CancelFunc
	ended  chan struct{}
}

// openNotice checks the places where to look, and that there is no notice yet.
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
			return nil, badConfig("Notice", "notice file: nobody can put it into %s: %w", filepath.Dir(path), err)
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
		return nil, badConfig("Notice", "this machine is about to go, nothing is started on it: %s (if that is long past, remove it, or start without it)", text)
	}
	return w, nil
}

// start begins to look; a notice becomes a SIGTERM on ch.
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

// close ends the looking. A nil watch does nothing.
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

// await looks until there is a notice, and returns its text. Trouble with a URL
// is told when it begins and when it is over: it must not end a job.
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
				fmt.Fprintf(w.out, "cohort: %s; the job goes on, and so do the questions\n", visible.Text(err.Error()))
			} else {
				fmt.Fprintf(w.out, "cohort: the notice URL answers again\n")
			}
		}
	}
}

// look looks once. A notice counts more than trouble.
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

// lookAtFile returns what there is to say of a notice file that is there.
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

// record writes the file for the ranks, so that it is there as a whole or not at all.
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

// said is the text of the notice there has been, or empty.
func (w *noticeWatch) said() string {
	if w == nil {
		return ""
	}
	if text := w.text.Load(); text != nil {
		return *text
	}
	return ""
}

// Notice returns what this host was told about its end, in the way that
// [Config].Notice describes; it is empty where nothing was.
func (h *Host) Notice() string { return h.notice.said() }

// watchNotice begins to look for a notice, if that is wanted.
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

// noticeText is the first line of what was read, as a terminal may have it.
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
