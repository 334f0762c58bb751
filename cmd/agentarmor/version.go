package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/spf13/cobra"
)

// release is the version of a build that carries none of its own.
const release = "0.1.0"

// version is that of the module where it was installed with go install, else
// the release.
var version = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || len(info.Main.Version) < 2 || info.Main.Version[0] != 'v' || isPseudo(info) {
		return release
	}
	return info.Main.Version[1:]
})

// isPseudo tells builds from a working tree, whose version names a commit.
func isPseudo(info *debug.BuildInfo) bool {
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return true
		}
	}
	return false
}

// versionCommand prints the version.
func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(a.stdout, "agentarmor %s %s %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
