package main

import (
	"io"
	"log/slog"
	"os"

	"github.com/lmittmann/tint"
)

// newLogger returns a log on w: coloured lines on a terminal, JSON elsewhere,
// or what the settings force. Its level can be changed while it runs.
func newLogger(w io.Writer, s logSettings, env lookup) (*slog.Logger, *slog.LevelVar) {
	level := &slog.LevelVar{}
	level.Set(logLevel(s.level))
	tty := terminal(w)
	if s.format == "tint" || s.format != "json" && tty {
		_, plain := env("NO_COLOR") // https://no-color.org
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, NoColor: plain || !tty})), level
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})), level
}

func logLevel(name string) slog.Level {
	var l slog.Level
	if l.UnmarshalText([]byte(name)) != nil {
		return slog.LevelInfo
	}
	return l
}

// terminal tells whether a person may be reading w.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
