// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// Masked is the value of a variable that may hold a secret.
const Masked = "(set, not shown)"

// prefixes of the names of variables that change what programs of a job do.
var prefixes = []string{"NCCL_", "GLOO_", "UCX_", "OMPI_MCA_", "MPICH_", "FI_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_", "TORCHELASTIC_", "PYTORCH_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "PYTHON", "LC_"}

// names of such variables.
var names = []string{"GODEBUG", "GOMAXPROCS", "GOMEMLIMIT", "GOGC", "GOTRACEBACK", "LD_PRELOAD", "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX", "MALLOC_CONF", "LANG", "TZ", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS", "NPY_DISABLE_CPU_FEATURES", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"}

// own are variables that differ between nodes and processes of every job, or that only one
// node's launcher has.
var own = []string{"COHORT_NODE_ID", "COHORT_NODE_ADDRS", "COHORT_AGENT_FD", "COHORT_SPAWN", "COHORT_JOB", "COHORT_RECORDER_DIR", "COHORT_NOTICE", "COHORT_TOKEN", "COHORT_TOKEN_FILE", "COHORT_ETCD_PASSWORD", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE", "PYTHON_EXEC", "PYTHONSTARTUP", "OMPI_MCA_orte_", "OMPI_MCA_ess_", "OMPI_MCA_pmix", "HF_TOKEN_PATH"}

// Chosen says whether a variable is part of a fingerprint. The patterns of more are names, or
// beginnings of names with a star behind them.
func Chosen(name string, more []string) bool {
	for _, p := range more {
		if p == name || strings.HasSuffix(p, "*") && strings.HasPrefix(name, p[:len(p)-1]) {
			return true
		}
	}
	for _, o := range own {
		if name == o || strings.HasSuffix(o, "_") && strings.HasPrefix(name, o) {
			return false
		}
	}
	if strings.HasPrefix(name, "COHORT_") {
		return !strings.HasPrefix(name, "COHORT_TEST_") && slices.ContainsFunc(envvar.List(), func(s envvar.Setting) bool { return string(s.Var) == name })
	}
	for _, n := range names {
		if n == name {
			return true
		}
	}
	for _, p := range prefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

var (
	secretName = regexp.MustCompile(`(?i)(TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|_KEY$|API_?KEY|ACCESS_?KEY|AUTH|COOKIE|SESSION|_PAT$|SIGNATURE|CONNECTION_STRING|_DSN$)`)
	// Names that only look like secrets.
	openName = regexp.MustCompile(`(?i)^(TOKENIZERS_|.*_AUTHORITY$|.*TOKENIZER.*)`)
	// Tokens of well-known servers, long runs of letters and digits, and keys in PEM.
	secretValue = regexp.MustCompile(`(hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|sk-[A-Za-z0-9_-]{16,}|AKIA[A-Z0-9]{12,}|xox[a-z]-[A-Za-z0-9-]{10,}|glpat-[\w-]{16,}|eyJ[\w-]{10,}\.[\w-]{10,}|-----BEGIN)`)
	// A name and password in a URL, or a token in its query.
	inURL   = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@]*@`)
	inQuery = regexp.MustCompile(`(?i)([?&;](?:[^=&\s]*(?:token|key|secret|password|signature|sig|auth)[^=&\s]*)=)[^&;\s]+`)
)

// Mask returns the value of a variable as it may be shown.
func Mask(name, value string) string {
	if value == "" {
		return ""
	}
	if secretName.MatchString(name) && !openName.MatchString(name) || secretValue.MatchString(value) {
		return Masked
	}
	return maskURL(value)
}

// maskURL removes names, passwords and tokens from the URLs in a text.
func maskURL(text string) string {
	text = inURL.ReplaceAllString(text, "${1}***@")
	text = inQuery.ReplaceAllString(text, "${1}***")
	if strings.Contains(text, "%") && strings.Contains(text, "://") {
		// An at-sign may be written as %40: what does not parse is not shown.
		if _, err := url.Parse(text); err != nil {
			return Masked
		}
	}
	return text
}

// collectVariables adds the chosen ones of an environment.
func (f *Fingerprint) collectVariables(environ, more []string) {
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok && Chosen(name, more) {
			if value == "" {
				continue
			}
			f.Set(Variables, name, Mask(name, value))
		}
	}
}
