// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"fmt"
	"strings"
)

// HostError is the error of one host.
type HostError struct {
	Host string
	// Refused says that the host cannot take part as things are: nothing has started there.
	Refused bool
	Err     error
}

func (e *HostError) Error() string { return fmt.Sprintf("host %s: %v", e.Host, e.Err) }
func (e *HostError) Unwrap() error { return e.Err }

// troubles are the causes that ssh and the shells of other hosts name, and what mends them.
// HOST stands for the host, COHORT for the program that was to run there. The first entry
// with a text that ssh has printed counts.
var troubles = []struct{ text, cause, mend string }{
	{"Host key verification failed", "ssh does not know the host's key, or knows another one", "run `ssh HOST` once and compare the key with the one of the host; if the host was set up anew, run `ssh-keygen -R HOST` first"},
	{"REMOTE HOST IDENTIFICATION HAS CHANGED", "the host has another key than before", "if the host was set up anew, run `ssh-keygen -R HOST`, and `ssh HOST` once"},
	{"Too many authentication failures", "ssh has offered too many keys", "name the right one: IdentityFile and IdentitiesOnly yes for HOST in ~/.ssh/config"},
	{"Permission denied (", "the host takes none of your keys, and would ask for a password", "cohort run needs a key: run `ssh-copy-id HOST` once, and `ssh-add` if the key has a passphrase; `ssh -o BatchMode=yes HOST true` must work"},
	{"Permission denied", "COHORT may not be executed there", "is it executable, and is its file system mounted without noexec? Name another path with --remote-cohort"},
	{"passphrase", "the key needs its passphrase", "run `ssh-add` once"},
	{"Could not resolve hostname", "there is no such name", "correct it in --hosts or the host file, or give it a HostName in ~/.ssh/config"},
	{"Connection refused", "no ssh server answers there", "start sshd on the host, or name its port for HOST in ~/.ssh/config"},
	{"timed out", "the host does not answer", "is it running, and does a firewall let port 22 through?"},
	{"No route to host", "the network knows no way to the host", "is it running, and is its address right?"},
	{"Network is unreachable", "the network knows no way to the host", "is this machine on its network?"},
	{"Connection reset", "the host has ended the connection at once", "look into the log of its sshd (journalctl -u ssh), and raise MaxStartups there if many connect"},
	{"Connection closed by", "the host has ended the connection at once", "look into the log of its sshd (journalctl -u ssh), and raise MaxStartups there if many connect"},
	{"kex_exchange_identification", "no ssh server answers at that port", "name the right port for HOST in ~/.ssh/config"},
	{"This account is currently not available", "the account may not run commands", "give the user a shell on HOST, or name another user, as in user@host"},
	{"unknown command host-agent", "Cohort there is too old to be started over ssh", "install the same version of Cohort there, or give --copy"},
	{"Exec format error", "the program there is for another kind of machine", "install Cohort for that machine there, and leave --copy out"},
	{"cannot execute", "the program there is for another kind of machine", "install Cohort for that machine there, and leave --copy out"},
	{"No space left on device", "the disk of the host is full", "free some there: ~/.cache/cohort/bin needs 100 MB"},
	{"Disk quota exceeded", "your quota on the host is used up", "free some there: ~/.cache/cohort/bin needs 100 MB"},
	{"not found", "there is no COHORT in the PATH of commands that come over ssh", "give --copy to copy this program there, or its path there with --remote-cohort /path/cohort"},
	{"No such file or directory", "there is no COHORT", "give --copy to copy this program there, or its path there with --remote-cohort /path/cohort"},
}

// explain makes an error of what ssh, or a shell, has printed before it ended.
func explain(host, program, printed string) error {
	last := ""
	for line := range strings.SplitSeq(printed, "\n") {
		if line = strings.TrimSpace(plain(line)); line != "" && !strings.HasPrefix(line, "Warning: Permanently added") {
			last = line
		}
	}
	for _, t := range troubles {
		if strings.Contains(printed, t.text) {
			said := last
			for line := range strings.SplitSeq(printed, "\n") {
				if strings.Contains(line, t.text) {
					said = strings.TrimSpace(plain(line))
					break
				}
			}
			name := strings.NewReplacer("HOST", host, "COHORT", program)
			return fmt.Errorf("%s (%s): %s", name.Replace(t.cause), clip(said), name.Replace(t.mend))
		}
	}
	if last == "" {
		last = "without a word"
	}
	return fmt.Errorf("ssh has ended before Cohort began there (%s): `ssh -o BatchMode=yes %s true` must work", clip(last), host)
}

// plain replaces control characters.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.TrimSuffix(text, "\r"))
}
