// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestMetricsOfTraining: the launcher of a job answers a scraper with what its ranks have done.
func TestMetricsOfTraining(t *testing.T) {
	j := start(t, nil, "train", "lm", "--ranks", "2", "--steps", "1000000", "--width", "16", "--heads", "2", "--layers", "1", "--batch", "2", "--context", "16",
		"--out", filepath.Join(t.TempDir(), "lm"), "--dashboard", "127.0.0.1:0")
	url := strings.Replace(dashboardOf(t, j), "/?", "/metrics?", 1)
	wants := []*regexp.Regexp{
		regexp.MustCompile(`(?m)^cohort_rank_up\{rank="1"\} 1$`), regexp.MustCompile(`(?m)^cohort_ranks 2$`), regexp.MustCompile(`(?m)^cohort_step\{rank="0"\} \d\d+$`),
		regexp.MustCompile(`(?m)^cohort_loss \d`), regexp.MustCompile(`(?m)^cohort_phase_seconds_total\{rank="1",phase="backward"\} \d`),
		regexp.MustCompile(`(?m)^cohort_collective_bytes_total\{group="world",op="all_reduce"\} \d`), regexp.MustCompile(`(?m)^cohort_memory_bytes\{rank="0",kind="resident"\} \d`),
	}
	var text []byte
	for deadline := time.Now().Add(time.Minute); len(wants) > 0; time.Sleep(100 * time.Millisecond) {
		if answer, err := http.Get(url); err == nil {
			text, _ = io.ReadAll(answer.Body)
			answer.Body.Close()
			for len(wants) > 0 && wants[0].Match(text) {
				wants = wants[1:]
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %v in:\n%s", wants[0], text)
		}
	}
	interrupt(t, j)
	j.wait(t)
}
