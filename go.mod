module github.com/agentarmor/agentarmor

go 1.26.0
