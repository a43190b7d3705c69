// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
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
		Short: "Load snapshots into another number of parameter servers",
		Long: `Make directories for --servers new servers from the newest snapshots of all servers
of a job: OUT/0, OUT/1, and so on. Each new server reads the rows that it owns. Run
cohort ps checkpoint when no worker pushes, and end the servers, before this command:
the entries of their logs behind the snapshots are not loaded.

Then cohort ps serve with --dir OUT/0 and the new number of servers goes on. Workers
begin at step 0: the new servers know the rows, and no workers.`,
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
			set, err := openSnapshots(dirs, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			part := out + ".part"
			if err := os.RemoveAll(part); err != nil {
				return err
			}
			for i := range servers {
				n, err := loadServer(cmd.Context(), set, routing, i, filepath.Join(part, fmt.Sprint(i)))
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

// loadServer makes the directory of one new server. Its log begins with the tables, and its first
// snapshot has the rows.
func loadServer(ctx context.Context, set snapshots, routing *ps.Routing, index int, dir string) (loaded int64, err error) {
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
	opts := []ps.Option{ps.WithTables(set.schemas()...), ps.WithJournal(j), ps.WithDir(filepath.Join(dir, "cold"))}
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
	newest, err := rows.New(to.Schema(), rows.Options{Owns: own})
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
		r.LSN, r.Step = 1, 0
		if r.Row != nil {
			n++
		}
		_, err := to.Put(r)
		return err
	})
	return n, err
}
