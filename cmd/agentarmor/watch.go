package main

import (
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// watcher tells when a file was written or another one took its place.
type watcher struct {
	fs      *fsnotify.Watcher
	names   []string // base names whose events count
	changed chan<- struct{}
	wg      sync.WaitGroup
}

// quiet is how long a file must have been left alone: editors write in steps.
const quiet = 200 * time.Millisecond

// watchFile watches the file's folder, since editors replace the file itself,
// and for a symbolic link also the folder of its target. A pending
// notification is enough: changed needs room for one.
func watchFile(file string, changed chan<- struct{}) (*watcher, error) {
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	// Kubernetes swaps the link ..data to change all files of a mount.
	w := &watcher{fs: fs, names: []string{filepath.Base(file), "..data"}, changed: changed}
	err = fs.Add(filepath.Dir(file))
	if target, e := filepath.EvalSymlinks(file); e == nil && err == nil {
		w.names = append(w.names, filepath.Base(target))
		err = fs.Add(filepath.Dir(target))
	}
	if err != nil {
		fs.Close()
		return nil, err
	}
	w.wg.Go(func() {
		defer wire.OnPanic()
		w.run()
	})
	return w, nil
}

func (w *watcher) run() {
	settle := time.NewTimer(quiet)
	settle.Stop()
	defer settle.Stop()
	for {
		select {
		case e, ok := <-w.fs.Events:
			if !ok {
				return
			}
			if slices.Contains(w.names, filepath.Base(e.Name)) && e.Op != fsnotify.Chmod {
				settle.Reset(quiet)
			}
		case _, ok := <-w.fs.Errors: // an overflow: something may have changed
			if !ok {
				return
			}
			settle.Reset(quiet)
		case <-settle.C:
			select {
			case w.changed <- struct{}{}:
			default:
			}
		}
	}
}

// close ends the watch and waits for it.
func (w *watcher) close() {
	w.fs.Close()
	w.wg.Wait()
}
