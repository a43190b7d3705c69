// SPDX-License-Identifier: Apache-2.0

package envvar

import (
	"os"
	"strings"
)

// SSHServerAddr is the address of this machine that a client of ssh has reached, from
// SSH_CONNECTION, which sshd sets; empty if sshd has not started this process.
func SSHServerAddr() string {
	words := strings.Fields(os.Getenv("SSH_CONNECTION")) // client, its port, server, its port
	if len(words) != 4 {
		return ""
	}
	return words[2]
}

// Become sets and clears variables of this process, as a command that comes over ssh asks for.
// Flags of cohort run that variables give (PET_…) and the token of another job do not count
// any more.
func Become(env []string, token string) error {
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "PET_") || name == string(Token) || name == string(TokenFile) {
			if err := os.Unsetenv(name); err != nil {
				return err
			}
		}
	}
	if token != "" {
		env = append(env[:len(env):len(env)], Token.Assign(token))
	}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

// sentOverSSH are the beginnings of names of variables that cohort run --hosts gives to the
// other hosts without being asked.
var sentOverSSH = []string{"COHORT_", "NCCL_", "GLOO_", "TORCH_", "OMP_", "MKL_", "CUDA_VISIBLE_DEVICES", "PYTORCH_", "PYTHON_EXEC"}

// ForHosts returns the variables of this process that other hosts get: the settings of Cohort
// and of PyTorch's libraries, and those of the names. The token goes its own way. What is true
// of this host alone is left out.
func ForHosts(names []string) (env []string) {
	more := map[string]bool{}
	for _, n := range names {
		more[n] = true
	}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch Var(name) {
		case Token, TokenFile, NodeID, NodeAddrs, AgentFD, Spawn, Job, RecorderDir, Notice:
			continue
		}
		sent := more[name]
		for _, p := range sentOverSSH {
			sent = sent || strings.HasPrefix(name, p)
		}
		if sent {
			env = append(env, kv)
		}
	}
	return env
}

// WithoutToken returns the environment of this process without the job's token, and without
// the password of etcd.
func WithoutToken() (env []string) {
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, Token.Assign("")) && !strings.HasPrefix(kv, TokenFile.Assign("")) && !strings.HasPrefix(kv, EtcdPassword.Assign("")) {
			env = append(env, kv)
		}
	}
	return env
}
