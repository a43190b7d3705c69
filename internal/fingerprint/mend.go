// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// mending is what a command that mends depends on beside the two values.
type mending struct {
	key             string
	expected, found *Fingerprint
}

// say returns a mending that is a sentence or a command with the expected value in it.
func say(text string) func(e, f string, m *mending) string {
	return func(e, _ string, _ *mending) string {
		if strings.Contains(text, "%s") {
			return fmt.Sprintf(text, e)
		}
		return text
	}
}

// run returns a mending that is a command with the expected value as a word of it.
func run(command string) func(e, f string, m *mending) string {
	return func(e, _ string, _ *mending) string { return fmt.Sprintf(command, Quote(e)) }
}

func sysctl(name string) func(e, f string, m *mending) string {
	return func(e, _ string, _ *mending) string { return "sysctl -w " + name + "=" + Quote(e) }
}

// ulimit returns a mending of a limit that the shell counts in units of some bytes.
func ulimit(flag string, unit int64) func(e, f string, m *mending) string {
	return func(e, _ string, _ *mending) string {
		if n, err := strconv.ParseInt(e, 10, 64); err == nil {
			e = strconv.FormatInt((n+unit-1)/unit, 10)
		}
		return "ulimit -" + flag + " " + Quote(e) + "  # or in /etc/security/limits.conf"
	}
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:=@%+,-]+$`)

// Quote writes a word for a shell.
func Quote(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func mendProgram(e, _ string, m *mending) string {
	if module := m.expected.Get(Program, "module"); module != "" && m.expected.Get(Program, "version") != m.found.Get(Program, "version") {
		return mendModule("", "", m)
	}
	path := m.found.Get(Program, "path")
	if path == "" {
		path = m.found.Get(Program, "name")
	}
	return "copy the program of another node to " + Quote(path) + ": its sha256 begins with " + e[:min(12, len(e))]
}

func mendModule(_, _ string, m *mending) string {
	module, version := m.expected.Get(Program, "package"), m.expected.Get(Program, "version")
	if module == "" || version == "" || strings.HasPrefix(version, "(") {
		return "copy the program of another node to this one"
	}
	return "go install " + Quote(module+"@"+version)
}

func mendCohort(_, _ string, m *mending) string {
	if v := m.expected.Get(Cohort, "version"); v != "" && !strings.HasPrefix(v, "(") && !strings.Contains(v, "+") {
		return "go install " + Quote("github.com/cohort-ml/cohort/cmd/cohort@"+v)
	}
	return "copy the binary cohort of another node to this one"
}

func mendFeatures(_, _ string, m *mending) string {
	if m.found.Get(Variables, "GODEBUG") != m.expected.Get(Variables, "GODEBUG") {
		return mendVariable(m.expected.Get(Variables, "GODEBUG"), "", &mending{key: "GODEBUG"})
	}
	return "let the virtual machine pass all features of its processor on (QEMU: -cpu host), or use equal machines"
}

func mendOnline(_, _ string, _ *mending) string {
	return "echo 1 | tee /sys/devices/system/cpu/cpu[0-9]*/online"
}

func mendAffinity(_, _ string, m *mending) string {
	if n, err := strconv.Atoi(m.found.Get(CPU, "online")); err == nil {
		return fmt.Sprintf("taskset -c 0-%d COMMAND  # instead of fewer cores", n-1)
	}
	return "start the launcher without taskset"
}

func mendQuota(e, _ string, m *mending) string {
	file := m.found.Get(CPU, "quota_file")
	if file == "" {
		return "give the container the CPUs of the others: " + Quote(e)
	}
	x, err := strconv.ParseFloat(e, 64)
	switch {
	case err != nil:
		return Lift(file)
	case filepath.Base(file) == "cpu.max":
		e = fmt.Sprintf("%.0f 100000", x*100000)
	default: // version 1 has the period in a file of its own
		e = fmt.Sprintf("%.0f", x*100000)
	}
	return "echo " + Quote(e) + " > " + Quote(file)
}

func mendMemoryLimit(e, _ string, m *mending) string {
	file := m.found.Get(Memory, "limit_file")
	if file == "" {
		return "give the container a limit of " + e + " bytes"
	}
	if e == unlimited {
		return Lift(file)
	}
	return "echo " + Quote(e) + " > " + Quote(file)
}

// Lift returns the command that takes a limit of a cgroup away. Both versions of cgroups have a word
// of their own for it.
func Lift(file string) string {
	word := "max"
	switch filepath.Base(file) {
	case "memory.limit_in_bytes", "cpu.cfs_quota_us":
		word = "-1"
	}
	return "echo " + word + " > " + Quote(file)
}

func mendPids(e, _ string, m *mending) string {
	if e == unlimited {
		e = "max"
	}
	if file := m.found.Get(Limits, "pids_file"); file != "" {
		return "echo " + Quote(e) + " > " + Quote(file)
	}
	return "give the container a pids limit of " + e
}

func mendGovernor(e, _ string, _ *mending) string {
	return "echo " + Quote(e) + " | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
}

func mendShm(e, _ string, _ *mending) string {
	return "mount -o " + Quote("remount,size="+e) + " /dev/shm  # a container: --shm-size " + Quote(e)
}

func mendHugePages(e, _ string, _ *mending) string {
	return "echo " + Quote(e) + " > /sys/kernel/mm/transparent_hugepage/enabled"
}

func mendOwnName(_, f string, m *mending) string {
	host := m.found.Get(System, "host")
	if strings.HasPrefix(f, "loopback") && host != "" {
		// cp and not sed -i: the file may be a mount.
		return `sed '/^127\.0\.1\.1[[:space:]]/d' /etc/hosts > /etc/hosts.new && cat /etc/hosts.new > /etc/hosts && rm /etc/hosts.new  # or give ` + host + " its own address there"
	}
	return "put the line 'ADDRESS " + host + "' into /etc/hosts"
}

// netdev returns the name of the interface that a key such as mtu.eth0 is about.
func netdev(key string) string {
	_, name, _ := strings.Cut(key, ".")
	return Quote(name)
}

func mendMTU(e, _ string, m *mending) string {
	return "ip link set dev " + netdev(m.key) + " mtu " + Quote(e)
}

func mendState(e, _ string, m *mending) string {
	if e == "up" {
		return "ip link set dev " + netdev(m.key) + " up"
	}
	return ""
}

func mendFamilies(e, _ string, m *mending) string {
	_, name, _ := strings.Cut(m.key, ".")
	if strings.Contains(e, "ipv6") {
		return "sysctl -w " + Quote("net.ipv6.conf."+name+".disable_ipv6=0") + "  # and give it an address"
	}
	return "give " + netdev(m.key) + " an address of " + Quote(e)
}

func mendClock(_, _ string, m *mending) string {
	switch m.found.Get(Clock, "source") {
	case "chrony":
		return "chronyc makestep"
	case "systemd-timesyncd", "ntpd":
		return "systemctl restart " + Quote(m.found.Get(Clock, "source"))
	}
	return "apt-get install chrony && chronyc makestep  # or another service that keeps the clock"
}

func mendZone(e, _ string, _ *mending) string {
	return "ln -sf /usr/share/zoneinfo/" + Quote(e) + " /etc/localtime"
}

func mendClockSource(e, _ string, _ *mending) string {
	return "echo " + Quote(e) + " > /sys/devices/system/clocksource/clocksource0/current_clocksource"
}

func mendPython(_, _ string, m *mending) string {
	e := m.expected
	return fmt.Sprintf("uv venv --python %s  # then cohort env create FILE", Quote(strings.ToLower(e.Get(Python, "implementation"))+e.Get(Python, "version")))
}

// mendPackage returns the command that installs one package as it should be. The value is a
// version; behind it a build of conda, or where it came from.
func mendPackage(e, f string, m *mending) string {
	python := m.found.Get(Python, "executable")
	if python == "" {
		python = "python3"
	}
	name := m.key
	if !packageName.MatchString(name) { // a command would take it for a flag
		return "look at the directory of the package " + Quote(name)
	}
	version, rest, _ := strings.Cut(e, " ")
	conda := strings.HasPrefix(rest, "conda ") || e == "" && strings.Contains(f, " conda ")
	switch {
	case conda && e == "":
		return "conda remove -p " + Quote(m.found.Get(Python, "prefix")) + " " + Quote(name)
	case conda:
		_, build, _ := strings.Cut(rest, " ")
		return "conda install -p " + Quote(m.found.Get(Python, "prefix")) + " " + Quote(name+"="+version+"="+strings.Fields(build + " *")[0])
	case e == "":
		return Quote(python) + " -m pip uninstall -y " + Quote(name)
	case strings.HasPrefix(rest, "from "):
		return Quote(python) + " -m pip install " + Quote(name+" @ "+strings.TrimPrefix(rest, "from "))
	case strings.HasPrefix(rest, "editable"):
		return "install " + name + " " + version + " from the same directory as on the other nodes"
	}
	return Quote(python) + " -m pip install --no-deps " + Quote(name+"=="+version)
}

func mendVariable(e, _ string, m *mending) string {
	switch e {
	case "":
		return "unset " + Quote(m.key)
	case Masked:
		return "set " + Quote(m.key) + " as on the other nodes"
	}
	return "export " + Quote(m.key) + "=" + Quote(e)
}

// mendSetting names the flag of a recipe. The key is setting.NAME_OF_FLAG.
func mendSetting(e, _ string, m *mending) string {
	flag := "--" + strings.ReplaceAll(strings.TrimPrefix(m.key, "setting."), "_", "-")
	switch e {
	case "", "null":
		return "leave " + Quote(flag) + " out on these ranks"
	case "true", "false":
		return "give " + Quote(flag+"="+e) + " to these ranks"
	}
	return "give " + Quote(flag) + " " + Quote(e) + " to these ranks"
}

func mendOption(e, _ string, m *mending) string {
	return "set Options." + strings.TrimPrefix(m.key, "option.") + " to " + e + " on these ranks"
}

func mendWeights(e, _ string, m *mending) string {
	from := m.found.Get(Run, "setting.init_from")
	if from == "" || e == "" {
		return "give the same --init-from to all ranks"
	}
	return "copy " + Quote(from) + " from another node: its weights have the checksum " + e
}

func mendData(e, _ string, m *mending) string {
	file := Quote(strings.TrimPrefix(m.key, "data."))
	if e == "" {
		return "remove " + file + " from the data of these ranks"
	}
	return "copy " + file + " of the data from another node"
}
