// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// collectClock reads whether the kernel knows that its clock is right, and who keeps it.
func (f *Fingerprint) collectClock(s source) {
	var t unix.Timex
	if state, err := unix.Adjtimex(&t); err == nil {
		synchronized := state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
		f.Set(Clock, "synchronized", strconv.FormatBool(synchronized))
		if synchronized {
			// In microseconds, and in nanoseconds with this bit.
			ms := float64(t.Offset) / 1e3
			if t.Status&unix.STA_NANO != 0 {
				ms = float64(t.Offset) / 1e6
			}
			f.Set(Clock, "offset", strconv.FormatFloat(max(ms, -ms), 'f', 3, 64))
			f.Set(Clock, "max_error", strconv.FormatFloat(float64(t.Maxerror)/1e3, 'f', 0, 64))
		}
	}
	for _, d := range []struct{ file, name string }{
		{"/run/chrony/chronyd.pid", "chrony"}, {"/run/chronyd.pid", "chrony"}, {"/run/systemd/timesync", "systemd-timesyncd"},
		{"/run/ntpd.pid", "ntpd"}, {"/run/openntpd.pid", "openntpd"}, {"/run/ptp4l", "ptp4l"},
	} {
		if _, err := os.Stat(s.path(d.file)); err == nil {
			f.Set(Clock, "source", d.name)
			break
		}
	}
	f.Set(Clock, "clocksource", s.read("/sys/devices/system/clocksource/clocksource0/current_clocksource"))
	zone := s.read("/etc/timezone")
	if to, err := os.Readlink(s.path("/etc/localtime")); err == nil {
		if _, name, ok := strings.Cut(to, "zoneinfo/"); ok {
			zone = name
		}
	}
	f.Set(Clock, "zone", zone)
}
