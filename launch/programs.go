// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// Program is what some of a job's ranks run.
type Program struct {
	// Path is as Config.Program.
	Path string
	// Args are the program's arguments.
	Args []string
	// NumRanks is how many ranks run it.
	NumRanks int
}

// withPrograms checks what is to run, and makes one of several where only their names
// and their sum count.
func (cfg Config) withPrograms() (Config, error) {
	if len(cfg.Programs) == 0 {
		if cfg.Program == "" {
			return cfg, badConfig("Program", "no program to run")
		}
		return cfg, nil
	}
	var names []string
	ranks := 0
	for i, p := range cfg.Programs {
		if p.Path == "" {
			return cfg, badConfig("Programs", "program %d of %d has no name", i+1, len(cfg.Programs))
		}
		if p.NumRanks < 1 || p.NumRanks > 1<<20 {
			return cfg, badConfig("Programs", "%d ranks of program %s: at least 1", p.NumRanks, p.Path)
		}
		ranks += p.NumRanks
		names = append(names, p.Path)
	}
	name := strings.Join(names, " and ")
	switch { // what is filled in below may be there
	case cfg.Program != "" && cfg.Program != name || len(cfg.Args) > 0:
		return cfg, badConfig("Programs", "one program (%s) and a list of programs contradict each other: give one of the two", cfg.Program)
	case cfg.NumRanks != 0 && cfg.NumRanks != ranks:
		return cfg, badConfig("Programs", "%d ranks, and programs with numbers of their own: leave out the first", cfg.NumRanks)
	case cfg.Module || cfg.Script || cfg.Direct:
		return cfg, badConfig("Programs", "several programs are told apart by their names: none of them can be a module, or a script with another ending than .py")
	}
	cfg.Program, cfg.NumRanks = name, ranks
	return cfg, nil
}

// resolve finds, or builds, the programs of the job.
func (h *Host) resolve(ctx context.Context, cfg *Config) error {
	if len(cfg.Programs) == 0 {
		p, err := resolve(ctx, cfg, h.job.id, &h.sig)
		if err != nil {
			return err
		}
		h.progs = []*program{p}
		return nil
	}
	for _, part := range cfg.Programs {
		one := *cfg
		one.Program, one.Args = part.Path, part.Args
		p, err := resolve(ctx, &one, h.job.id, &h.sig)
		if err != nil {
			return err
		}
		h.progs = append(h.progs, p)
	}
	return nil
}

// program is what a local rank runs.
func (h *Host) program(local int) *program {
	for i, part := range h.cfg.Programs {
		if local < part.NumRanks {
			return h.progs[i]
		}
		local -= part.NumRanks
	}
	return h.progs[0]
}

// ParseProgram reads N:PROGRAM ARGS…, the form in which a command line has one of
// several programs. Blanks part the words; quotes keep them.
func ParseProgram(text string) (Program, error) {
	bad := func(why string) (Program, error) {
		return Program{}, fmt.Errorf("%q: %s: give N:PROGRAM with the number of its ranks, such as 2:train.py or \"2:train.py --lr 0.1\"", text, why)
	}
	count, rest, ok := strings.Cut(text, ":")
	if !ok {
		return bad("there is no number of ranks")
	}
	n, err := envvar.ParseInt(count)
	if err != nil || n < 1 {
		return bad(fmt.Sprintf("%q is no number of ranks", count))
	}
	words, err := splitWords(rest)
	if err != nil {
		return bad(err.Error())
	}
	if len(words) == 0 || words[0] == "" {
		return bad("there is no program")
	}
	return Program{Path: words[0], Args: words[1:], NumRanks: n}, nil
}

// splitWords parts a text at its blanks, but for those in single or double quotes.
func splitWords(text string) (words []string, err error) {
	var word strings.Builder
	var quote rune
	inside := false
	for _, c := range text {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quote, inside = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if inside {
				words = append(words, word.String())
				word.Reset()
				inside = false
			}
		default:
			word.WriteRune(c)
			inside = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote (%c) is not closed", quote)
	}
	if inside {
		words = append(words, word.String())
	}
	return words, nil
}
