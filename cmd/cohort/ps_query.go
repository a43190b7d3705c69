// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/rpc/ps"
)

// maxQueryKeys bounds the keys of one read.
const maxQueryKeys = 1 << 16

// psRow is a row as cohort ps query prints it.
type psRow struct {
	Key int64     `json:"key"`
	Row []float32 `json:"row"`
}

func newPSQueryCommand() *cobra.Command {
	var p psServers
	var table, listen string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "query [KEY...]",
		Short: "Read rows of a table from parameter servers",
		Long: `Print the rows of keys. A key without a row has its first value, as a pull has:
reading makes no row. Put -- before keys that are negative.

With --http the command answers reads by HTTP until it is interrupted:
GET /tables lists the tables, and GET /tables/NAME?keys=1,2 has the rows as JSON.`,
		Example: `  cohort ps query --at 127.0.0.1:7000 --table user 17 -- -4
  cohort ps query --at 127.0.0.1:7000 --http 127.0.0.1:8080`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case listen != "" && (table != "" || len(args) > 0):
				return usageError{errors.New("--http serves all tables: leave --table and the keys out")}
			case listen == "" && table == "":
				return usageError{errors.New("ps query needs --table NAME and keys, or --http HOST:PORT")}
			case listen == "" && len(args) == 0:
				return usageError{errors.New("ps query needs the keys of the rows")}
			}
			keys, err := parseKeys(args)
			if err != nil {
				return usageError{err}
			}
			client, end, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer end()
			if listen != "" {
				ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
				defer stop()
				return serveRows(ctx, client, p.timeout, listen, cmd.OutOrStdout())
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), p.timeout)
			defer cancel()
			found, err := readRows(ctx, client, table, keys)
			if err != nil {
				return err
			}
			return printRows(cmd.OutOrStdout(), found, asJSON)
		},
	}
	fl := cmd.Flags()
	p.flags(fl)
	fl.StringVar(&table, "table", "", "read rows of the table `NAME`")
	fl.BoolVar(&asJSON, "json", false, "print one JSON object for each row")
	fl.StringVar(&listen, "http", "", "answer reads by HTTP at `HOST:PORT`; port 0: any free port")
	return cmd
}

func parseKeys(texts []string) ([]int64, error) {
	if len(texts) > maxQueryKeys {
		return nil, fmt.Errorf("%d keys, and at most %d are read at once", len(texts), maxQueryKeys)
	}
	keys := make([]int64, len(texts))
	for i, text := range texts {
		var err error
		if keys[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, fmt.Errorf("%q is no key: keys are whole numbers of 64 bits", text)
		}
	}
	return keys, nil
}

// readRows pulls rows.
func readRows(ctx context.Context, c *ps.Client, table string, keys []int64) ([]psRow, error) {
	names := tableNamesOf(c)
	known := false
	for _, n := range names {
		known = known || n == table
	}
	if !known {
		return nil, unknownTable(table, names)
	}
	out, err := c.Pull(ctx, ps.Request{Table: table, Keys: keys})
	if err != nil {
		return nil, err
	}
	values, width := out[0].Float32s(), out[0].Dim(1)
	found := make([]psRow, len(keys))
	for i, k := range keys {
		found[i] = psRow{k, values[i*width : (i+1)*width]}
	}
	return found, nil
}

func printRows(w io.Writer, found []psRow, asJSON bool) error {
	for _, r := range found {
		if asJSON {
			if err := printJSON(w, r); err != nil {
				return err
			}
			continue
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%d:", r.Key)
		for _, x := range r.Row {
			fmt.Fprintf(&b, " %g", x)
		}
		if _, err := fmt.Fprintln(w, b.String()); err != nil {
			return err
		}
	}
	return nil
}

// serveRows answers reads by HTTP until ctx ends.
func serveRows(ctx context.Context, c *ps.Client, timeout time.Duration, listen string, stdout io.Writer) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return usageError{fmt.Errorf("--http: %w", err)}
	}
	server := &http.Server{Handler: rowsHandler(c, timeout), ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	if _, err := fmt.Fprintf(stdout, "rows at http://%s/tables\n", l.Addr()); err != nil {
		l.Close()
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	err = server.Close()
	<-ended
	return err
}

// rowsHandler answers /tables and /tables/NAME?keys=1,2.
func rowsHandler(c *ps.Client, timeout time.Duration) http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, code int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v) // the reader may have gone
	}
	type refusal struct {
		Error string `json:"error"`
	}
	mux.HandleFunc("GET /tables", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, c.Tables()) })
	mux.HandleFunc("GET /tables/{name}", func(w http.ResponseWriter, r *http.Request) {
		texts := strings.Split(r.URL.Query().Get("keys"), ",")
		keys, err := parseKeys(texts)
		if err != nil {
			answer(w, http.StatusBadRequest, refusal{err.Error()})
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		found, err := readRows(ctx, c, r.PathValue("name"), keys)
		switch {
		case err == nil:
			answer(w, http.StatusOK, found)
		case errors.As(err, new(usageError)):
			answer(w, http.StatusNotFound, refusal{err.Error()})
		case ps.KindOf(err) == ps.KindKeys:
			answer(w, http.StatusBadRequest, refusal{err.Error()})
		default:
			answer(w, http.StatusBadGateway, refusal{err.Error()})
		}
	})
	return mux
}
