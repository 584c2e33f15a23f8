-- Wooly for Slurm: reservations on remote devices for jobs (installed by `wooly slurm install`, which also replaces it).
--
-- burst_buffer/lua plugin of slurmctld, Slurm 21.08 and newer, Lua 5.1 to 5.4. A job with `#WOOLY vram=MIB` stays pending, without a
-- node, until its reservation has a place on a device; its tasks get the id in their environment; its end releases the reservation.
-- slurm_bb_job_process and slurm_bb_paths run inside slurmctld under locks and read files only. The other functions run in a child
-- process that Slurm kills when the job is cancelled. Interface: etc/burst_buffer.lua.example of Slurm.

unpack = unpack or table.unpack
local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
local VRAM_MIB_MAX = 67108864
local FILE_BYTES_MAX = 1048576
local WAIT_S = 2073600 -- 24 days: the most that StageInTimeout may be
local AGAIN = ".again" -- ending of the file of a job that is to be staged again
local OUT = ".out" -- ending of the file with the output of a command
local AWAY, REFUSED = 75, 2 -- exit codes of `wooly reserve` and `wooly release`

-- Pure functions ----------------------------------------------------------------------------------------------------------------------

-- One word of a shell command, whatever is in `text`.
function wooly_quoted(text)
    return "'" .. text:gsub("%z", ""):gsub("'", "'\\''") .. "'"
end

-- `text` on one line without control characters, at most `bytes_max` bytes.
function wooly_line(text, bytes_max)
    text = text:gsub("%c", " ")
    return #text > bytes_max and text:sub(1, bytes_max):gsub("[\128-\255]+$", "") .. "" or text
end

-- The id of a reservation: at most 64 characters of [A-Za-z0-9_-], different for each (cluster, job, submit time, start of staging).
-- The times (seconds since 1970) separate jobs to which Slurm gave the same id after it lost its state, and runs of a requeued job.
function wooly_task_id(cluster, job, submitted_s, began_s)
    local name = cluster:gsub("[^A-Za-z0-9_-]", "-")
    if name ~= cluster or #name > 20 then
        local hash = 5381
        for i = 1, #cluster do
            hash = (hash * 33 + cluster:byte(i)) % 4294967296
        end
        name = string.format("%s-%08x", name:sub(1, 11), hash)
    end
    return string.format("%s-%s-%s-%s", name, job, submitted_s, began_s)
end

local function whole(text, least, most)
    local number = text:match("^%d%d?%d?%d?%d?%d?%d?%d?$") and tonumber(text)
    return number and number >= least and number <= most and number or nil
end

local function vram_mib(text)
    local digits, unit = text:match("^(%d+)([MG]?)$")
    local number = digits and whole(digits, 1, VRAM_MIB_MAX)
    return number and whole(string.format("%d", unit == "G" and number * 1024 or number), 1, VRAM_MIB_MAX) or nil
end

local VALUES = {
    vram = { "--required-vram", vram_mib, "write MiB on each GPU such as vram=8192, or GiB such as vram=8G" },
    prio = { "--prio", function(text) return whole(text, 0, 4) end, "write prio=0 (highest) to prio=4" },
    gpus = { "--gpus", function(text) return whole(text, 1, 64) end, "write gpus=1 to gpus=64" },
    group = { "--group", function(text) return #text <= 128 and text:match("^[A-Za-z0-9][A-Za-z0-9_.-]*$") end, "write the id of a node group" },
}
local SWITCHES = { exclusive = "--exclusive", noswap = "--noswap" }

-- The flags of `wooly reserve` by the #WOOLY lines of a job script, a list of words; else nil and a sentence for the user. As in Slurm,
-- directives stand before the first line that is no comment, and a backslash continues a line.
function wooly_flags(script)
    local flags, seen, found = {}, {}, false
    for line in script:gmatch("[^\n]+") do
        if line:sub(1, 1) ~= "#" then
            break
        end
        if line:sub(1, 6) == "#WOOLY" then
            found = true
            for word in line:sub(7):gsub("\\%s*$", ""):gmatch("%S+") do
                local name, value = word:match("^(%l+)=(.*)$")
                local shown = wooly_line(word, 60)
                if seen[name or word] and name ~= "group" then
                    return nil, string.format("wooly: %s is given twice in #WOOLY; write it once", name or word)
                elseif SWITCHES[word] then
                    flags[#flags + 1] = SWITCHES[word]
                elseif name and VALUES[name] then
                    local flag, read, remedy = unpack(VALUES[name])
                    local given = read(value)
                    if not given then
                        return nil, string.format("wooly: %s in #WOOLY is not allowed; %s", shown, remedy)
                    end
                    flags[#flags + 1] = flag .. "=" .. given
                else
                    return nil, string.format("wooly: #WOOLY does not know %s; it knows vram, prio, gpus, group, exclusive and noswap", shown)
                end
                seen[name or word] = true
            end
        end
    end
    if not found or not seen.vram then
        return nil, "wooly: #WOOLY names no vram; write MiB on each GPU such as #WOOLY vram=8192"
    end
    return flags
end

-- The tenant that pays for a job of `user` under `account`: nil and no sentence when the key decides, nil and a sentence when none does.
function wooly_tenant(config, user, account)
    local tenant = config["tenant.account." .. account] or config["tenant.user." .. user] or config.tenant
    if tenant or not config.mapped then
        return tenant
    end
    return nil, string.format("wooly: no tenant for user %s, account %s; ask the administrator to add one to wooly.conf", user, account)
end

-- Lines `name = value`; `#` begins a comment line.
function wooly_config(text)
    local config = {}
    for line in text:gmatch("[^\r\n]+") do
        local name, value = line:match("^%s*([^%s#=][^%s=]*)%s*=%s*(.-)%s*$")
        if name and value ~= "" then
            config[name] = value
            config.mapped = config.mapped or name:match("^tenant%.") ~= nil
        end
    end
    return config
end

-- Files and commands -------------------------------------------------------------------------------------------------------------------

local function content(path)
    local file = io.open(path, "r")
    if not file then
        return nil
    end
    local text = file:read(FILE_BYTES_MAX) or ""
    file:close()
    return text
end

-- Run a shell command; each line of its output goes to `on_line`; its exit code, which Lua 5.1 does not give for a pipe.
local function run(command, on_line)
    local pipe, code = io.popen("(\n" .. command .. "\n) 2>&1; echo \"rc=$?\"", "r"), REFUSED
    for line in pipe:lines() do
        local ended = line:match("^rc=(%d+)$")
        if ended then
            code = tonumber(ended)
        else
            on_line(line)
        end
    end
    pipe:close()
    return code
end

local function words(list)
    local quoted = {}
    for i, word in ipairs(list) do
        quoted[i] = wooly_quoted(word)
    end
    return table.concat(quoted, " ")
end

-- Run `wooly` with the variables of wooly.conf; its exit code and the last line that it wrote. With `out` its standard output goes to that
-- file, apart from messages, which may quote other users. The shell reads the key: all users of the machine see command lines, and only the
-- same user sees an environment.
local function wooly(config, arguments, on_line, out)
    local variables, last = { "HOME=/nonexistent", "LC_ALL=C.UTF-8" }, ""
    for name, value in pairs(config) do
        if type(value) == "string" and name:match("^[A-Z][A-Z0-9_]*$") then
            variables[#variables + 1] = name .. "=" .. value
        end
    end
    local command = "export " .. words(variables) .. " && exec " .. words({ config.wooly or "wooly", unpack(arguments) })
    if out then
        command = command .. " > " .. wooly_quoted(out)
    end
    if config.key_file then
        command = "WOOLY_API_KEY=$(cat " .. wooly_quoted(config.key_file) .. ") && export WOOLY_API_KEY && " .. command
    end
    local code = run(command, function(line)
        last = line
        if on_line then
            on_line(line)
        end
    end)
    return code, last
end

local function settings()
    return wooly_config(content(here .. "/wooly.conf") or "")
end

local function slurm_command(...)
    return words({ "env", "SLURM_TIME_FORMAT=%s", "SLURM_CONF=" .. here .. "/slurm.conf", ... })
end

local function squeue(job, format, on_line)
    run(slurm_command("squeue", "--noheader", "--states=all", "--jobs=" .. job, "--format=" .. format), on_line)
end

-- Submit time (s), state, priority (0: held), user, account and name of a job, and `alone`, what commands call it by; nil when Slurm does
-- not answer. The last element of an array has the id of the array, and by that commands show and change all elements; names and accounts
-- have lines of the users' choice. For the child process: slurmctld itself would wait for its own locks.
local function job_facts(job)
    local alone, facts
    squeue(job, "%A|%i", function(line)
        local id, shown = line:match("^(%d+)|([%d_+]+)$")
        alone = id == tostring(job) and shown or alone
    end)
    if not alone then
        return nil
    end
    squeue(alone, "%V|%T|%Q|%u|%a|%j", function(line)
        local submitted_s, state, priority, user, account, name = line:match("^(%d+)|([%u_]+)|(%d+)|([^|]*)|([^|]*)|(.*)$")
        if submitted_s and not facts then
            facts = { alone = alone, submitted_s = submitted_s, state = state, priority = priority, user = user, account = account, name = name }
        end
    end)
    return facts
end

-- What a job shows while it waits: AdminComment of `scontrol show job`, which only operators and Slurm itself write. Without its position
-- in the queue, which changes too often for slurmctld, and without the names of other tasks, which its readers may not know.
local said
local function say(job, text)
    text = text:gsub("number %d+ of %d+; ", ""):gsub("; would let it in: .*", "")
    if text == said then
        return
    end
    said = text
    slurm.log_info("wooly: job %s: %s", job, text)
    run(slurm_command("scontrol", "update", "JobId=" .. job, "AdminComment=" .. wooly_line(text, 500)), function() end)
end

-- The state of a job between functions: a file beside the job scripts, where a backup slurmctld sees it too. First the line
-- `submitted=SECONDS`, then lines NAME=VALUE for the environment of its tasks.
local function state_path(job, script)
    local folder = script:match("^(.*)/hash%.%d+/job%.%d+/[^/]*$")
    return folder and folder .. "/wooly/" .. job, folder and folder .. "/wooly"
end

local function store(path, text)
    local file = io.open(path .. ".new", "w")
    if not file then
        return false
    end
    file:write(text)
    return file:close() and os.rename(path .. ".new", path)
end

local function task_of(path)
    return ((path and content(path)) or ""):match("WOOLY_TASK_ID=([A-Za-z0-9_-]+)")
end

local function submitted_of(path)
    return (content(path) or ""):match("^submitted=(%d+)\n")
end

-- Wait until the reservation has a place and store what the job's tasks need; else nil, a sentence and the exit code. Of a reservation that
-- has its place it asks whether that still stands.
local function placed(job, script, wait_s)
    local flags, refusal = wooly_flags(content(script) or "")
    local path = state_path(job, script)
    local task, facts, config = task_of(path), job_facts(job), settings()
    if not (flags and task and facts) then
        return nil, refusal or "wooly: Slurm shows no job " .. job .. " with a reservation; submit it again"
    end
    local tenant, none = wooly_tenant(config, facts.user, facts.account)
    if none then
        return nil, none
    end
    local given = { "reserve", "--id", task, "--wait", tostring(wait_s), "--term", config.term_s or "3600" }
    given[#given + 1] = "--title=" .. wooly_line("Slurm " .. job .. ": " .. facts.name, 100)
    if tenant then
        given[#given + 1] = "--tenant=" .. tenant
    end
    for _, flag in ipairs(flags) do
        given[#given + 1] = flag
    end
    local out = path .. OUT
    local code, last = wooly(config, given, function(line) say(facts.alone, line) end, out)
    local printed = content(out) or ""
    os.remove(out)
    if code ~= 0 then
        return nil, last, code
    end
    local variables = { "submitted=" .. facts.submitted_s }
    if tenant then
        variables[2] = "WOOLY_TENANT=" .. tenant
    end
    for line in printed:gmatch("[^\n]+") do
        variables[#variables + 1] = line
    end
    say(facts.alone, "wooly: reservation " .. task)
    if not store(path, table.concat(variables, "\n") .. "\n") then
        return nil, "wooly: " .. path .. " cannot be written; see the disk of StateSaveLocation"
    end
    return true
end

-- What Slurm calls ---------------------------------------------------------------------------------------------------------------------

function slurm_bb_job_process(job_script)
    local flags, refusal = wooly_flags(content(job_script) or "")
    if not flags then
        return slurm.ERROR, refusal
    end
    return slurm.SUCCESS
end

-- Names the reservation. A job that was being staged when slurmctld ended keeps its reservation and so its place in the queue.
function slurm_bb_setup(job_id, uid, gid, pool, bb_size, job_script)
    local path, folder = state_path(job_id, job_script)
    local facts = job_facts(job_id)
    if not (path and facts) then
        return slurm.ERROR, "wooly: Slurm shows no job " .. job_id .. "; submit it again"
    end
    if submitted_of(path) ~= facts.submitted_s then
        local config = settings()
        local task = wooly_task_id(config.cluster or "slurm", job_id, facts.submitted_s, string.format("%d", os.time()))
        os.execute("mkdir -p -m 700 " .. wooly_quoted(folder))
        if not store(path, "submitted=" .. facts.submitted_s .. "\nWOOLY_TASK_ID=" .. task .. "\n") then
            return slurm.ERROR, "wooly: " .. path .. " cannot be written; see the disk of StateSaveLocation"
        end
    end
    return slurm.SUCCESS
end

-- True when this process holds the pipe over which Slurm waits for the end of another job's function: that job could not continue until
-- this one has its place. slurmscriptd forks in several threads, and a process inherits both ends of a pipe that another thread has just made.
-- Of pipes that slurmscriptd itself keeps it has both ends too.
local BOTH_ENDS = [[
both() {
    for f in /proc/$1/fd/*; do
        pipe=$(readlink "$f")
        case $pipe in pipe:*) while read -r name flags; do
            [ "$name" != flags: ] || echo "$pipe ${flags#"${flags%?}"}"
        done < "/proc/$1/fdinfo/${f##*/}" ;; esac
    done 2>/dev/null | sort -u | cut -d' ' -f1 | uniq -d
}
kept=$(both "$(cut -d' ' -f4 "/proc/$PPID/stat")")
both "$PPID" | grep -qvxF "$kept"
]]

local function holds_another_job()
    return run(BOTH_ENDS, function() end) == 0
end

-- Newer versions of Slurm (24.05) ask again and again, by slurm_bb_test_data_in; of older ones this function waits.
function slurm_bb_data_in(job_id, job_script)
    if slurm.SLURM_BB_BUSY then
        return slurm.SUCCESS
    end
    if holds_another_job() then
        store(state_path(job_id, job_script) .. AGAIN, "")
        return slurm.ERROR, "wooly: staged again"
    end
    local done, refusal = placed(job_id, job_script, WAIT_S)
    if not done then
        return slurm.ERROR, refusal
    end
    return slurm.SUCCESS
end

function slurm_bb_test_data_in(job_id, job_script)
    local done, refusal, code = placed(job_id, job_script, 10)
    if not done and code == AWAY then
        return slurm.SUCCESS, slurm.SLURM_BB_BUSY
    end
    return done and slurm.SUCCESS or slurm.ERROR, refusal
end

function slurm_bb_paths(job_id, job_script, path_file)
    local path = state_path(job_id, job_script)
    local file = task_of(path) and io.open(path_file, "w")
    if not file then
        return slurm.ERROR, "wooly: job " .. job_id .. " has no reservation"
    end
    file:write((content(path):gsub("^submitted=%d+\n", "")))
    file:close()
    return slurm.SUCCESS
end

-- A reservation may have ended while the job waited for nodes: then the job is queued again, with a new one.
function slurm_bb_pre_run(job_id, job_script)
    local done, refusal = placed(job_id, job_script, 120)
    if not done then
        return slurm.ERROR, refusal
    end
    return slurm.SUCCESS
end

-- Releases the reservation. While the controller is away it is asked again; at last the term of the reservation ends it.
function slurm_bb_job_teardown(job_id, job_script, hurry)
    local path = state_path(job_id, job_script)
    local task = task_of(path)
    if not task then
        return slurm.SUCCESS
    end
    local config, facts = settings(), job_facts(job_id)
    if os.remove(path .. AGAIN) and facts and facts.state == "PENDING" then
        run("sleep 1; " .. slurm_command("scontrol", "release", facts.alone), function() end)
        return slurm.SUCCESS
    end
    if facts and facts.state == "PENDING" and facts.priority ~= "0" and submitted_of(path) == facts.submitted_s then
        return slurm.SUCCESS -- slurmctld was restarted, and stages the job again a minute later, with the same reservation
    end
    local arguments = { "release", task, "--reason", "Slurm job " .. job_id .. (facts and " " .. facts.state or "") }
    local until_s, code, last = os.time() + 120, AWAY, ""
    while true do
        code, last = wooly(config, arguments)
        if code ~= AWAY or os.time() > until_s then
            break
        end
        slurm.log_info("wooly: job %s: %s", job_id, last)
        os.execute("sleep 3")
    end
    if code ~= 0 then
        slurm.log_info("wooly: reservation %s of job %s is not released (%s); its term ends it", task, job_id, last)
    end
    os.remove(path)
    os.remove(path .. OUT) -- of a command that was killed
    if facts then
        say(facts.alone, "wooly: released " .. task) -- and Slurm considers a job anew that it has queued again after slurm_bb_pre_run
    end
    return slurm.SUCCESS
end

function slurm_bb_get_status()
    return slurm.SUCCESS, "AdminComment of `scontrol show job JOB` says why a job waits\n"
end

local function nothing()
    return slurm.SUCCESS
end

slurm_bb_pools, slurm_bb_real_size, slurm_bb_post_run, slurm_bb_data_out = nothing, nothing, nothing, nothing
slurm_bb_test_data_out = nothing -- of newer versions
