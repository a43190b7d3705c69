// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"strings"
	"testing"
)

func TestParseSignals(t *testing.T) {
	for text, want := range map[string]string{
		"SIGTERM,SIGINT,SIGHUP,SIGQUIT": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
		"usr1, SIGTERM ,TERM":           "SIGUSR1,SIGTERM",
	} {
		if got, err := ParseSignals(text); err != nil || signalNames(got) != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{"": "no signal", "SIGTERM,": "no signal", "SIGWHAT": "no signal", "SIGKILL": "cannot be handled", "SIGCHLD": "for itself"} {
		if got, err := ParseSignals(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
