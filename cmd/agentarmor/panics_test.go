package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// A panic in any goroutine must end the upstreams' processes, too: every
// function that starts on its own defers wire.OnPanic, or calls one thing
// that does.
func TestEveryGoroutineEndsTheProcessesWhenItPanics(t *testing.T) {
	set := token.NewFileSet()
	var files []*ast.File
	safe := map[string]bool{"cancel": true} // by name: a context's, and what defers OnPanic
	for dir, names := range goFiles(t) {
		if !strings.HasPrefix(dir, "mcpproxy") && !strings.HasPrefix(dir, "cmd") {
			continue
		}
		for _, name := range names {
			f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && defersOnPanic(fn.Body) {
					safe[fn.Name.Name] = true
				}
			}
		}
	}
	started := 0
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if fn := startedBy(n); fn != nil {
				started++
				if !isSafe(fn, safe) {
					t.Errorf("%s: what starts here does not defer wire.OnPanic", set.Position(n.Pos()))
				}
			}
			return true
		})
	}
	if started < 20 {
		t.Errorf("only %d starts seen", started)
	}
}

// startedBy returns the function that n starts on a goroutine of its own, nil
// if n starts none.
func startedBy(n ast.Node) ast.Expr {
	switch n := n.(type) {
	case *ast.GoStmt:
		return n.Call.Fun
	case *ast.CallExpr:
		switch name := nameOf(n.Fun); {
		case name == "Go" && len(n.Args) == 1:
			return n.Args[0]
		case name == "AfterFunc" && len(n.Args) == 2:
			return n.Args[1]
		}
	}
	return nil
}

func isSafe(fn ast.Expr, safe map[string]bool) bool {
	lit, ok := fn.(*ast.FuncLit)
	if !ok {
		return safe[nameOf(fn)]
	}
	if defersOnPanic(lit.Body) {
		return true
	}
	if len(lit.Body.List) != 1 {
		return false
	}
	var call ast.Expr
	switch s := lit.Body.List[0].(type) {
	case *ast.ExprStmt:
		call = s.X
	case *ast.SendStmt:
		call = s.Value
	}
	c, ok := call.(*ast.CallExpr)
	return ok && safe[nameOf(c.Fun)]
}

func defersOnPanic(body *ast.BlockStmt) bool {
	if body == nil {
		return false
	}
	for _, s := range body.List {
		if d, ok := s.(*ast.DeferStmt); ok && nameOf(d.Call.Fun) == "OnPanic" {
			return true
		}
	}
	return false
}

// nameOf is the last name of an identifier or selector.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}
