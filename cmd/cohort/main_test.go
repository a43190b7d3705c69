// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/leftover"
)

// cliMain makes a process of the test binary the cohort command. Commands that
// start ranks need that: a rank is this binary, started again, with the same
// environment, and so never runs tests.
const cliMain = "COHORT_CLI_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(cliMain) != "" {
		if len(os.Args) == 3 && os.Args[1] == glooRank {
			os.Exit(runGlooRank(os.Args[2]))
		}
		if len(os.Args) == 3 && os.Args[1] == hookRank {
			os.Exit(runHookRank(os.Args[2]))
		}
		if done, code := runFloodPart(os.Args[1:]); done {
			os.Exit(code)
		}
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	if envvar.Rank.IsSet() || envvar.Spawn.IsSet() {
		fmt.Fprintln(os.Stderr, "a rank must not run the tests")
		os.Exit(4)
	}
	tmp := leftover.Dir()
	os.Setenv("TMPDIR", tmp)
	os.Setenv(string(envvar.Cache), filepath.Join(tmp, "cache"))
	os.Exit(leftover.Check(tmp, m.Run()))
}
