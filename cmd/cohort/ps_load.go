// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps"
	"github.com/cohort-ml/cohort/rpc/ps/journal"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

func newPSLoadCommand() *cobra.Command {
	var servers int
	cmd := &cobra.Command{
		Use:   "load DIR... OUT",
		Short: "Load the data of parameter servers into another number of servers",
		Long: `Make directories for --servers new servers from the directories of all servers of a
job: OUT/0, OUT/1, and so on. End the servers before. A server whose log has pushes
behind its newest snapshot gets another snapshot first, so that nothing is lost.

Then cohort ps serve with --dir OUT/0 and the new number of servers goes on: the new
servers have the rows with their state, the steps of the workers and the learning
rates. Synchronous servers that were ended between two steps are refused.`,
		Example: `  cohort ps load --servers 3 ps/0 ps/1 wider`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usageError{errors.New("ps load needs the directories of all servers, and the directory to make")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dirs, out := args[:len(args)-1], args[len(args)-1]
			routing, err := ps.NewRouting(servers)
			if err != nil {
				return usageError{fmt.Errorf("--servers: %w", err)}
			}
			if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
				return usageError{fmt.Errorf("%s is there already: give the name of a directory that is to be made", out)}
			}
			for _, dir := range dirs {
				if err := saveLog(cmd.Context(), dir, cmd.ErrOrStderr()); err != nil {
					return err
				}
			}
			set, err := openSnapshots(dirs, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			progress, err := set.progress()
			if err != nil {
				return err
			}
			part := out + ".part"
			if err := os.RemoveAll(part); err != nil {
				return err
			}
			for i := range servers {
				n, err := loadServer(cmd.Context(), set, progress, routing, i, filepath.Join(part, fmt.Sprint(i)))
				if err == nil {
					_, err = fmt.Fprintf(cmd.OutOrStdout(), "server %d of %d: %s\n", i, servers, plural(int(n), "row"))
				}
				if err != nil {
					return errors.Join(err, os.RemoveAll(part))
				}
			}
			return os.Rename(part, out)
		},
	}
	cmd.Flags().IntVar(&servers, "servers", 1, "number of servers to make directories for")
	return cmd
}

// saveLog writes a snapshot into the directory of a server that has ended, if its log goes on behind
// the newest one.
func saveLog(ctx context.Context, dir string, stderr io.Writer) (err error) {
	job, index, servers, err := journal.Whose(dir)
	if err != nil {
		return err
	}
	j, err := journal.Open(dir, journal.Options{Job: job, Server: index, Servers: servers})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	if l, _, err := journal.Load(dir); err == nil && l.Manifest().At >= j.Last() {
		return nil
	}
	agent, err := rpc.Init(ctx, "ps-load") // alone, so that nobody can push
	if err != nil {
		return err
	}
	defer agent.Close()
	s, err := ps.Serve(ctx, agent, index, servers, ps.WithJournal(j), ps.WithDir(filepath.Join(dir, "cold")), ps.WithLogLimit(0))
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := s.Snapshot(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stderr, "cohort: %s has a new snapshot with %d entries of its log\n", dir, j.Recovered().Entries)
	return err
}

// progress is how far the job has come.
func (s snapshots) progress() (ps.Progress, error) {
	var states [][]byte
	for _, l := range s {
		b, err := l.State()
		if err != nil {
			return ps.Progress{}, err
		}
		states = append(states, b)
	}
	return ps.MergeProgress(states...)
}

// loadServer makes the directory of one new server. Its log begins with the tables and the progress of
// the job, and its first snapshot has the rows.
func loadServer(ctx context.Context, set snapshots, progress ps.Progress, routing *ps.Routing, index int, dir string) (loaded int64, err error) {
	j, err := journal.Open(dir, journal.Options{Server: index, Servers: routing.Servers(), Job: set[0].Manifest().Job})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	// An agent that is alone and listens nowhere: nobody can push meanwhile.
	agent, err := rpc.Init(ctx, "ps-load")
	if err != nil {
		return 0, err
	}
	defer agent.Close()
	opts := []ps.Option{ps.WithTables(set.schemas()...), ps.WithJournal(j), ps.WithDir(filepath.Join(dir, "cold")), ps.WithProgress(progress), ps.WithLogLimit(0)}
	if job := set[0].Manifest().Job; job != "" {
		opts = append(opts, ps.WithJob(job))
	}
	s, err := ps.Serve(ctx, agent, index, routing.Servers(), opts...)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	for number, t := range s.Tables() {
		n, err := loadTable(set, number, t, routing.Owns(index, t.Schema().Rows))
		loaded += n
		if err != nil {
			return loaded, err
		}
	}
	_, err = s.Snapshot(ctx)
	return loaded, err
}

// loadTable puts the rows that a new server owns into its table. The numbers of the old logs mean
// nothing there: the rows belong to the first entry of the new log, which names the tables.
func loadTable(set snapshots, number int, to *rows.Table, own func(key int64) bool) (n int64, err error) {
	schema := to.Schema()
	schema.Memory = 0 // for this table has no directory
	newest, err := rows.New(schema, rows.Options{Owns: own})
	if err != nil {
		return 0, err
	}
	defer newest.Close()
	for _, from := range set {
		if err := from.Records(number, func(r rows.Record) error { _, err := newest.Put(r); return err }); err != nil {
			return 0, err
		}
	}
	err = newest.Scan(0, func(r rows.Record) error {
		r.LSN = 1
		if r.Row != nil {
			n++
		}
		_, err := to.Put(r)
		return err
	})
	return n, err
}
