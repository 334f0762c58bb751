package main

// Keys that other clients keep in the same files. They are ignored with a
// warning, so that a pasted file works unchanged.

// foreignTop stand beside mcpServers.
var foreignTop = []string{
	"$schema", "version", "name", "schema",
	// VS Code mcp.json
	"inputs", "gallery", "sandbox",
	// Claude Desktop claude_desktop_config.json
	"globalShortcut", "preferences", "scale", "locale", "userThemeMode", "theme", "darkMode",
	"isUsingBuiltInNodeForMcp", "isDxtAutoUpdatesEnabled", "allowDevTools", "quickEntryShortcut",
	"coworkUserFilesPath", "hasTrackedInitialActivation", "windowBounds", "menuBarEnabled",
	// Gemini CLI settings.json
	"security", "ui", "general", "model", "context", "mcp", "telemetry", "privacy", "ide", "tools",
	"advanced", "experimental", "hooks", "output", "selectedAuthType", "contextFileName", "autoAccept",
	"checkpointing", "hideTips", "hideBanner", "preferredEditor", "coreTools", "excludeTools",
	"usageStatisticsEnabled", "extensions",
	// Claude Code
	"permissions", "env", "enableAllProjectMcpServers", "enabledMcpjsonServers", "disabledMcpjsonServers",
}

// foreignEntry stand inside a server's entry.
var foreignEntry = []string{
	// VS Code
	"envFile", "dev", "gallery", "version", "sandbox", "sandboxEnabled", "oauth", "description",
	// Cursor
	"auth", "name", "icon",
	// Cline, Roo Code
	"autoApprove", "alwaysAllow", "timeout", "networkTimeout", "watchPaths", "remoteConfigured", "oauthProviderId",
	// Gemini CLI
	"trust", "authProviderType", "targetAudience", "targetServiceAccount", "extension",
	// Claude Code, Continue
	"headersHelper", "alwaysLoad", "requestOptions", "connectionTimeout",
	// Zed, Windsurf
	"source", "settings", "registry",
}

// ignoredBecause says more where ignoring a key may surprise.
var ignoredBecause = map[string]string{
	"inputs":  "only VS Code can ask for inputs; use environment variables",
	"mcp":     "servers stand in mcpServers",
	"envFile": "put its variables into env",
	"timeout": "clients disagree on its unit; use call_timeout: 60s",
	"oauth":   "OAuth to upstreams is not built yet; use headers",
	"auth":    "OAuth to upstreams is not built yet; use headers",
}

// otherSpelling suggests a key where an edit distance cannot.
var otherSpelling = map[string]string{
	"context_servers":   "mcpServers", // Zed
	"enabled":           "disabled",   // Zed, Codex, opencode
	"environment":       "env",        // opencode
	"workingDir":        "cwd",
	"working_directory": "cwd",
	"allowedTools":      "tools",
	"enabled_tools":     "tools", // Codex
	"disabled_tools":    "tools", // Codex
}
