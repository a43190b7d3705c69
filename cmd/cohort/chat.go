// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cohort-ml/cohort/data/chat"
	"github.com/cohort-ml/cohort/internal/visible"
	"github.com/cohort-ml/cohort/train"
)

// maxMessage bounds a message that is typed.
const maxMessage = 1 << 20

// talk reads a message from each line of standard input, and writes the answers of a model,
// until the input ends. On a terminal it says whose turn it is.
func talk(cmd *cobra.Command, m *train.LanguageModel, o train.GenerateOptions, system string) error {
	var begin []chat.Message
	if system != "" {
		begin = append(begin, chat.Message{Role: "system", Content: chat.Text(system)})
	}
	if m.Template == nil {
		_, err := m.ChatPrompt(begin)
		return fmt.Errorf("--chat: %w", err)
	}
	in, out := cmd.InOrStdin(), cmd.OutOrStdout()
	mark := func(string) {}
	if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		mark = func(text string) { fmt.Fprint(cmd.ErrOrStderr(), text) }
		mark("Each line is a message. /new begins a new conversation, /end or Ctrl-D ends.\n")
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxMessage)
	messages := begin
	for {
		mark("> ")
		if !lines.Scan() {
			break
		}
		switch text := strings.TrimSpace(lines.Text()); text {
		case "":
			continue
		case "/end":
			return nil
		case "/new":
			messages = begin
			continue
		default:
			messages = append(messages[:len(messages):len(messages)], chat.Message{Role: "user", Content: chat.Text(text)})
		}
		answer, err := reply(cmd, m, o, messages, out)
		if err != nil {
			return fmt.Errorf("--chat: %w", err)
		}
		messages = append(messages, chat.Message{Role: "assistant", Content: chat.Text(answer)})
		o.Seed++ // another answer to the same message
	}
	mark("\n")
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("--chat: a message has more than the %d bytes allowed", maxMessage)
	}
	return lines.Err()
}

// reply writes the answer to a conversation, and returns it.
func reply(cmd *cobra.Command, m *train.LanguageModel, o train.GenerateOptions, messages []chat.Message, out io.Writer) (string, error) {
	ids, err := m.ChatPrompt(messages)
	if err != nil {
		return "", err
	}
	var answer bytes.Buffer
	_, err = m.Generate(cmd.Context(), [][]int64{ids}, o, func(_ int, piece []byte) error {
		if answer.Len() == 0 { // the space that some tokenizers put before a word
			piece = bytes.TrimPrefix(piece, []byte(" "))
		}
		answer.Write(piece)
		_, err := out.Write(visible.Append(nil, piece))
		return err
	})
	fmt.Fprintln(out)
	return strings.ToValidUTF8(answer.String(), "\uFFFD"), err
}
