// SPDX-License-Identifier: Apache-2.0

package launch

import "fmt"

// Token returns the job's token: with it, agents of several hosts prove to each
// other that they belong together. It is a secret.
func (h *Host) Token() string { return h.job.token }

// Line says how a rank ended: "rank 3 exited with code 1 (pid 7, host h)".
func (f *Failure) Line() string {
	text := fmt.Sprintf("rank %d %s (pid %d, host %s)", f.Rank, f.how(), f.PID, f.Host)
	if f.Message != "" {
		text += ": " + f.Message
	}
	return text
}
