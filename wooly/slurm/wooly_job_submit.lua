-- Wooly for Slurm: jobs that ask for the GRES woolyai_vram get a reservation too (installed by `wooly slurm install`).
--
-- job_submit.lua loads this file at its end with dofile(...): what the site defined before stays and is called first.

local site = slurm_job_submit

-- MiB of the GRES woolyai_vram in `gres`, a list such as "gres:gpu:1,gres/woolyai_vram=16384"; nil when it is not in the list; nil and a
-- sentence when its count is none.
function wooly_gres_mib(gres)
    for item in (gres or ""):gmatch("[^,]+") do
        local count = item:gsub("^gres[:/]", ""):match("^woolyai_vram[:=]?(.*)$")
        if count then
            local digits, unit = count:match("^(%d%d?%d?%d?%d?%d?%d?%d?)([MG]?)$")
            if not digits or tonumber(digits) == 0 then
                return nil, "wooly: the count of woolyai_vram is MiB on each GPU; write --gres=woolyai_vram:8192"
            end
            return digits .. unit
        end
    end
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    local code = site and site(job_desc, part_list, submit_uid) or slurm.SUCCESS
    if code ~= slurm.SUCCESS then
        return code
    end
    local mib, refusal = wooly_gres_mib(job_desc.tres_per_node or job_desc.gres)
    if refusal then
        slurm.user_msg(refusal)
        return slurm.ERROR
    end
    local directives = (job_desc.burst_buffer or "") .. "\n" .. (job_desc.script or "")
    if mib and not ("\n" .. directives):find("\n#WOOLY") then
        job_desc.burst_buffer = "#WOOLY vram=" .. mib
    end
    return slurm.SUCCESS
end

slurm_job_modify = slurm_job_modify or function()
    return slurm.SUCCESS
end
