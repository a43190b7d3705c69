// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps"
	"github.com/cohort-ml/cohort/rpc/ps/journal"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// psServe are the flags of cohort ps serve.
type psServe struct {
	index, servers int
	listen         string
	dir, log       string
	tables         []string
	job            string
	store          string
	workers        int
	consistency    string
	every          time.Duration
	logLimit       []int
}

// logModes are the values of --log.
var logModes = []string{string(journal.OS), string(journal.Disk), string(journal.None)}

func newPSServeCommand() *cobra.Command {
	var p psServe
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Be one of the parameter servers of a job",
		Long: `Be server number --index of --servers parameter servers until the command is
interrupted. The address is the last word of the first line that the command
prints. Clients prove that they know the token in COHORT_TOKEN or
COHORT_TOKEN_FILE (see cohort token).

With --dir the server keeps all that it has acknowledged: the same command goes on
where the last one ended. --log says what acknowledged means: os, the system has
the push, so that it survives kill -9; disk, the disk has it, so that it survives
the machine; none, only snapshots are kept.

A server writes a snapshot whenever the log behind the last one has reached
--snapshot-log bytes, and takes away what nothing needs any more. So the log needs
about twice this size on the disk.

Tables come from --tables, and from the first worker that names them. A file of
tables is TOML:

  [[table]]
  name = "user"
  width = 64
  optimizer = {kind = "adagrad", lr = 0.05}
  init = {kind = "uniform", scale = 0.01, seed = 1}`,
		Example: `  cohort ps serve --index 0 --servers 2 --listen 127.0.0.1:7000 --dir ps/0
  cohort ps serve --listen 127.0.0.1:0 --tables tables.toml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return p.serve(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&p.index, "index", 0, "number of this server, from 0")
	fl.IntVar(&p.servers, "servers", 1, "number of servers of the job")
	fl.StringVar(&p.listen, "listen", "127.0.0.1:0", "`HOST:PORT` to serve at; port 0: any free port")
	fl.StringVar(&p.dir, "dir", "", "keep the log and the snapshots in `DIR`; without it the rows end with the process")
	fl.StringVar(&p.log, "log", string(journal.OS), "when a push counts as acknowledged")
	oneOf(fl, "log", logModes...)
	fl.StringSliceVar(&p.tables, "tables", nil, "read tables from the TOML `FILES`")
	fl.StringVar(&p.job, "job", "", "refuse workers of another job than `NAME`")
	fl.StringVar(&p.store, "store", "", "publish the address in the store at `HOST:PORT` (cohort store --wire cohort)")
	fl.IntVar(&p.workers, "workers", 0, "number of workers; without it the first worker says so")
	fl.StringVar(&p.consistency, "consistency", "", "with --workers: how far workers may be apart, such as synchronous, bounded:4 or asynchronous")
	p.logLimit = []int{ps.DefaultLogLimit}
	fl.Var(&sizes{values: &p.logLimit}, "snapshot-log", "write a snapshot when the log has grown by `SIZE`; 0: only at --snapshot-every and when asked (with --dir)")
	fl.DurationVar(&p.every, "snapshot-every", 0, "write a snapshot in these intervals, and at the end (with --dir)")
	return cmd
}

// options returns those of the server, without its journal and store.
func (p *psServe) options() ([]ps.Option, error) {
	var opts []ps.Option
	var tables []rows.Schema
	for _, path := range p.tables {
		more, err := readTables(path)
		if err != nil {
			return nil, usageError{fmt.Errorf("--tables: %w", err)}
		}
		tables = append(tables, more...)
	}
	if len(tables) > 0 {
		opts = append(opts, ps.WithTables(tables...))
	}
	if p.job != "" {
		opts = append(opts, ps.WithJob(p.job))
	}
	switch {
	case p.workers > 0:
		c, err := ps.ParseConsistency(p.consistency)
		if err != nil {
			return nil, usageError{fmt.Errorf("--consistency: %w", err)}
		}
		opts = append(opts, ps.WithWorkers(p.workers, c))
	case p.workers < 0:
		return nil, usageError{fmt.Errorf("--workers is %d, want at least 1", p.workers)}
	case p.consistency != "":
		return nil, usageError{errors.New("--consistency needs --workers")}
	}
	return opts, nil
}

func (p *psServe) serve(ctx context.Context, stdout, stderr io.Writer) (err error) {
	if p.dir == "" && p.every > 0 {
		return usageError{errors.New("--snapshot-every needs --dir: without a directory there are no snapshots")}
	}
	if p.every < 0 {
		return usageError{fmt.Errorf("--snapshot-every is %v, want more than 0", p.every)}
	}
	if p.servers < 1 || p.index < 0 || p.index >= p.servers {
		return usageError{fmt.Errorf("--index is %d and --servers is %d: servers count from 0", p.index, p.servers)}
	}
	if len(p.logLimit) != 1 {
		return usageError{fmt.Errorf("--snapshot-log has %d sizes, want one", len(p.logLimit))}
	}
	opts, err := p.options()
	if err != nil {
		return err
	}
	var j *journal.Journal
	if p.dir != "" {
		j, err = journal.Open(p.dir, journal.Options{Mode: journal.Mode(p.log), Server: p.index, Servers: p.servers, Job: p.job})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, j.Close()) }()
		opts = append(opts, ps.WithJournal(j), ps.WithDir(filepath.Join(p.dir, "cold")), ps.WithLogLimit(int64(p.logLimit[0])))
	}
	if p.store != "" {
		s, err := dialPSStore(ctx, p.store)
		if err != nil {
			return err
		}
		defer s.Close()
		opts = append(opts, ps.WithStore(s))
	}
	agent, err := rpc.Init(ctx, fmt.Sprintf("ps%d", p.index), rpc.WithListen(p.listen))
	if err != nil {
		return err
	}
	defer agent.Close()
	s, err := ps.Serve(ctx, agent, p.index, p.servers, opts...)
	if err != nil {
		return err
	}
	defer s.Close()
	if j != nil && !j.Fresh() {
		r := j.Recovered()
		fmt.Fprintf(stderr, "cohort: server %d has %d rows of snapshot %d, and has applied %d entries of its log again\n", p.index, r.Rows, r.At, r.Entries)
		for _, skipped := range r.Skipped {
			fmt.Fprintf(stderr, "cohort: a damaged snapshot was left out, and the log has made up for it: %v\n", skipped)
		}
	}
	if _, err := fmt.Fprintf(stdout, "parameter server %d of %d at %s\n", p.index, p.servers, s.Addr()); err != nil {
		return err
	}
	return p.run(ctx, s, stderr)
}

// run waits for the end, and writes the snapshots meanwhile.
func (p *psServe) run(ctx context.Context, s *ps.Server, stderr io.Writer) error {
	atEnd := func() error {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_, err := s.Snapshot(last)
		return err
	}
	if p.every == 0 {
		<-ctx.Done()
		if p.dir != "" && journal.Mode(p.log) == journal.None && s.Err() == nil {
			return atEnd() // nothing else has the rows
		}
		return s.Err()
	}
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			// A failed snapshot, such as on a full disk, loses nothing: the log has all.
			if _, err := s.Snapshot(ctx); err != nil && ctx.Err() == nil {
				fmt.Fprintf(stderr, "cohort: %v\n", err)
			}
		case <-ctx.Done():
			return atEnd()
		}
	}
}

// readTables reads the tables of a TOML file.
func readTables(path string) ([]rows.Schema, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file map[string]any
	if err := toml.Unmarshal(text, &file); err != nil {
		var syntax *toml.DecodeError
		if errors.As(err, &syntax) {
			line, column := syntax.Position()
			return nil, fmt.Errorf("%s:%d:%d: %w", path, line, column, err)
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for name := range file {
		if name != "table" {
			return nil, fmt.Errorf("%s: unknown key %s: a file of tables has [[table]] alone", path, name)
		}
	}
	list, ok := file["table"].([]any)
	if !ok || len(list) == 0 {
		return nil, fmt.Errorf("%s: there is no [[table]]", path)
	}
	var tables []rows.Schema
	for i, one := range list {
		text, err := json.Marshal(one)
		var s rows.Schema
		if err == nil {
			err = json.NewDecoder(bytes.NewReader(text)).Decode(&s)
		}
		if err == nil {
			err = s.Validate()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: table %d: %w", path, i+1, err)
		}
		tables = append(tables, s)
	}
	return tables, nil
}
